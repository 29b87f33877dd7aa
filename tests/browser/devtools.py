"""Chromium driven by its DevTools protocol over a pipe: for pages that talk to a server while they are looked at."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Page:
    """One page. Messages are JSON objects, each ended by a zero byte, on the descriptors 3 and 4 of the browser."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.read, self.rest, self.count, self.session = write, read, b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command of the protocol, and its answer; events in between are passed over."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                part = os.read(self.read, 1 << 16)
                assert part, "the browser has gone"
                self.rest += part
            first, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(first)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def look(self, width: int, height: int = 900, *, dark: bool = False, still: bool = False) -> None:
        """A window of this size, for people who like the dark or less motion."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce" if still else "no-preference"
        self.call("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in features.items()])

    def open(self, address: str) -> None:
        """Another page, loaded."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def do(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        made = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait for something to be true, however long it takes; the tests' own limit ends what never is."""
        for _ in range(60_000):
            if self.do(condition):
                return
            time.sleep(0.01)
        raise AssertionError(f"never: {condition}")

    def press(self, key: str, *, control: bool = False, text: str = "") -> None:
        """A key, as a hand presses it."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}
        about = {"key": key, "code": key, "modifiers": 2 * control, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Text where the focus is."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> Path:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path


@contextmanager
def browser(program: str, home: Path, *flags: str) -> Iterator[Page]:
    """A browser with a page, for as long as the block."""
    (theirs, write), (read, ours) = os.pipe(), os.pipe()
    for end in (theirs, ours):
        os.set_inheritable(end, True)

    # The shell puts the ends where Chromium looks for them: no code of ours runs between fork and exec.
    words = [program, *flags, f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank"]
    script = f'exec 3<&{theirs} 4>&{ours} && exec "$@"'
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(["bash", "-c", script, "bash", *words], pass_fds=(theirs, ours), **silent)
    os.close(theirs)
    os.close(ours)
    try:
        yield Page(write, read)
    finally:
        os.close(write)
        os.close(read)
        child.terminate()
        child.wait()
