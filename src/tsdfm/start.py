"""What lies around a command: its streams, Ctrl-C in its first moments, and the net under everything that escapes.

Nothing heavy is imported here, so that it holds from the first moment on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from tsdfm.errors import UserError

NO_MEMORY = "there is not enough memory"
FULL = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
"""What torch says of a full GPU or machine, in errors of several kinds."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. A library that is being loaded would answer it in words of its own, or swallow it: then end at once.

    That leaves no more behind than a kill, of which everything that is written here takes no harm.
    """
    if any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in [*sys.modules.values()]):
        os.write(2, b"tsdfm: interrupted\n")
        os._exit(130)
    raise KeyboardInterrupt


def open_streams() -> None:
    """Open stdin, stdout and stderr where they are closed: else the next file has their number, and gets their text."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


class Steady:
    """stderr, whose end or whose full disk ends no training: what cannot be said is not."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """While a command runs: any text can be written, whatever the terminal's alphabet, and stderr may be gone."""
    before = sys.stderr
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    sys.stderr = Steady(before)
    try:
        yield
    finally:
        sys.stderr = before


def flush() -> None:
    """See to it that what was printed has arrived, as long as somebody can be told that it has not."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def settle() -> None:
    """What cannot be printed goes nowhere, so that Python's own end does not stumble over it."""
    try:
        flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def interrupted(problem: BaseException) -> bool:
    """Was an interrupt the cause? Libraries that are being loaded turn it into errors of their own."""
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def see_folder() -> None:
    """Refuse to work in a folder that was deleted: no path means anything there, and libraries end the process."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise UserError("the folder you are in was deleted: change to another one") from None


def first_line(problem: Exception) -> str:
    """The first line of what an error says, and not too much of it."""
    return next(iter(str(problem).strip().splitlines()), "")[:200]


def in_words(problem: Exception) -> str | None:
    """One line for what a machine can do to any program: no memory, no disk, a file it may not read; else None."""
    full = isinstance(problem, RuntimeError) and any(word in str(problem) for word in FULL)
    if full or isinstance(problem, MemoryError):
        why = f" ({first_line(problem)})" if str(problem) else ""
        return f"{NO_MEMORY}{why}: lower the batch, or use a smaller model"
    if not isinstance(problem, OSError) or problem.errno is None:
        return None
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left {f'for {problem.filename}' if problem.filename else 'where the output goes'}: free some"
    return None if problem.filename is None else f"cannot use {problem.filename} ({problem.strerror})"


def saved(problem: Exception, words: Sequence[str]) -> str:
    """One line for what should not have happened, with the place of its traceback."""
    from tsdfm import __version__

    about = f"tsdfm {__version__}, Python {platform.python_version()}, {platform.platform()}\ntsdfm {' '.join(words)}\n"
    text = "\n".join([about, *traceback.format_exception(problem)])
    what = f"{type(problem).__name__}: {first_line(problem)}".rstrip(": ")
    try:
        handle, place = tempfile.mkstemp(prefix="tsdfm-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        place = "nowhere: the temporary folder cannot be written"
    return f"this should not have happened ({what}); please report it, with what is in {place}"
