"""A hub on this machine, which hands out the files of folders, and what it is like without one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@contextlib.contextmanager
def serving(folders: Mapping[str, Path], again: str = ":0") -> Iterator[str]:
    """The address of a hub whose repositories `NAME` are folders; `again` is one that was served before."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.wfile.write(self.answer())

        def answer(self) -> bytes:
            name, _, file = self.path.strip("/").partition("/resolve/main/")
            path = folders.get(name, Path("nowhere")) / file
            found = bool(file) and path.is_file()
            body = path.read_bytes() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", "0" * 40)
            if found:
                self.send_header("ETag", f'"{len(body)}-{path.name}"')
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            return body

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", int(again.rpartition(":")[2])), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def online(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """The hub is at `endpoint`, with an empty cache of its own; its client may not sleep before another try."""
    from huggingface_hub import constants

    def sleep(seconds: float) -> None:
        raise AssertionError(f"the hub's client tries again after {seconds} s")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", sleep)
