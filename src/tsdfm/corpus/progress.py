"""Progress of the stages that read text: a bar in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

QUIET_SECONDS = 10.0  # between plain lines; a short run prints none


class TextProgress:
    """Counts documents and characters.

    with TextProgress("corpus", total=None) as progress:
        progress.advance(documents=1, characters=280)
    """

    def __init__(self, what: str, total: int | None = None, things: str = "documents") -> None:
        self.what, self.total, self.things = what, total, things
        self.documents, self.characters = 0, 0
        self.began = self.shown = time.monotonic()
        self.console = Console(stderr=True)
        self.bar = self._make_bar() if self.console.is_terminal and not self.console.is_dumb_terminal else None

    def _make_bar(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        extra = (TextColumn(f"{self.things}, {{task.fields[speed]}}"), TimeRemainingColumn())
        bar = Progress(*columns, *extra, console=self.console, transient=True)
        self.task = bar.add_task(self.what, total=self.total, speed="")
        return bar

    @property
    def speed(self) -> str:
        return f"{self.characters / max(time.monotonic() - self.began, 1e-9) / 1e6:.1f}M characters/s"

    def advance(self, documents: int, characters: int) -> None:
        self.documents += documents
        self.characters += characters
        now = time.monotonic()
        if self.bar is not None and now - self.shown > 0.1:
            self.bar.update(self.task, completed=self.documents, speed=self.speed)
            self.shown = now
        elif self.bar is None and now - self.shown > QUIET_SECONDS:
            of = f" of {self.total:,}" if self.total else ""
            self.say(f"{self.what}: {self.documents:,}{of} {self.things}, {self.speed}")
            self.shown = now

    def say(self, line: str) -> None:
        """One plain line, whole whatever the width of the terminal."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> TextProgress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
