"""How much a command says, and how a text is shown.

Alone a command says everything; as one stage of a pipeline only `say`, and `-v` shows the rest.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from rich.console import Console

_mode = "alone"  # or, as one stage of many, "quiet" or "verbose"
_then: list[str | Path] = []  # the words of the next command


@contextlib.contextmanager
def many_stages(verbose: bool) -> Iterator[None]:
    """What runs inside is one of many stages: no advice on the next command, and details only if `verbose`."""
    global _mode
    before, _mode = _mode, "verbose" if verbose else "quiet"
    try:
        yield
    finally:
        _mode = before


def quiet() -> bool:
    """Are details left out?"""
    return _mode == "quiet"


def say(text: str) -> None:
    """One line that is always shown, on stderr."""
    print(text, file=sys.stderr, flush=True)


def detail(text: str) -> None:
    """One line that a pipeline leaves out."""
    if not quiet():
        say(text)


def made(what: str, result: str, place: Path, *then: str | Path) -> None:
    """How a stage ends: what was made and where it lies; `then` are the words of the command that comes next."""
    say(f"{what}: {result} → {place}")
    if then and _mode == "alone":
        _then[:] = then


@contextlib.contextmanager
def one_command() -> Iterator[None]:
    """What runs inside is a command by itself: the next one is named when all else is said."""
    _then.clear()
    yield
    if _then:
        say(f"next: {shlex.join(['tsdfm', *map(str, _then)])}")


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console for tables and details, which is silent where a pipeline leaves them out."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, quiet=quiet())


@contextlib.contextmanager
def progress(what: str, *, silent: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere; the function it gives is told how many are done, and of how many."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=silent or not console.is_terminal) as bar:
        job = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


SAFE = "\n\t\u200c\u200d"  # lines, tabs, and what joins or parts letters within a word


def visible(text: str) -> str:
    """A text that cannot steer the terminal: its control characters are written as their escapes.

    A model may write any byte, and a file may come from anybody. Escape, for one, begins the commands that clear the
    screen or rename the window; others turn the direction of a line.

    >>> print(visible("Mia\\x1b[2J has \\u202etwo\\r balls"))
    Mia\\x1b[2J has \\u202etwo\\r balls
    """
    return "".join(
        c if c in SAFE or category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else c.encode("unicode_escape").decode()
        for c in text
    )


def markup(text: str) -> str:
    """The same inside a picture or a page: no tags either."""
    return escape(visible(text))


def short(number: float) -> str:
    """1234567 → 1.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"
