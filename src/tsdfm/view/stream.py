"""`tsdfm sample --stream`: every pass of the network as it comes, in place on a terminal, else as JSON lines.

    {"event": "pass", "index": 0, "pass": 3, "of": 8, "t": 0.375, "text": "Mia has …"}            each text, each pass
    {"event": "text", "index": 0, "seed": 0, "nfe": 8, "text": "Mia has three …", "tokens": […]}  when all are done

In a text that is being written, U+FFFD stands for what is [MASK] still.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from tsdfm.samples.run import show_texts
from tsdfm.samples.written import Moment, Samples
from tsdfm.terminal import visible

MASKED = "░"


class Stream(Protocol):
    """What shows passes, and the finished texts."""

    def __call__(self, moment: Moment) -> None: ...

    def show(self, samples: Samples) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Events on stdout, a JSON object a line."""

    def __call__(self, moment: Moment) -> None:
        about = {"pass": moment.passes, "of": moment.of, "t": round(moment.t, 6)}
        for number, text in zip(moment.numbers, moment.texts, strict=True):
            tell({"event": "pass", "index": number, **about, "text": text})

    def show(self, samples: Samples) -> None:
        for record in samples.records():
            tell({"event": "text", **record})

    def close(self) -> None:
        """Every line has been written when it came."""


class Screen:
    """The texts of a batch in place on a terminal; what does not fit is cut off until all are printed at the end."""

    def __init__(self, console: Console) -> None:
        self.console, self.live = console, Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, moment: Moment) -> None:
        self.live.start()
        parts = [
            Group(
                Rule(Text(f"text {number}, pass {moment.passes} of {moment.of}"), align="left", style="dim"),
                Text(visible(text.replace("\N{REPLACEMENT CHARACTER}", MASKED))),
            )
            for number, text in zip(moment.numbers, moment.texts, strict=True)
        ]
        self.live.update(Group(*parts), refresh=True)

    def show(self, samples: Samples) -> None:
        self.close()
        show_texts(samples)

    def close(self) -> None:
        self.live.stop()


def tell(event: dict[str, Any]) -> None:
    """One line, at once."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


def stream() -> Stream:
    """In place where stdout is a terminal, else JSON lines."""
    console = Console()
    return Screen(console) if console.is_terminal and not console.is_dumb_terminal else Lines()
