"""Cases of bad input and faults: each is tried on a copy of the small world, by the command line, in this process.

A case that must be refused ends with code 2 and one line that says why. Then nothing that was there before has changed.
What ends otherwise is told by its kind:

    traceback   an exception came out of `main`, or was caught by its last net (code 1)
    silent      it was to be refused, and went on as if nothing were wrong
    refused     it was to work, and was refused
    wordy       it was refused in no line, or in several
    hang        it took longer than `PATIENCE`
    lost        it was refused, and a file that was there is gone or changed
    litter      it was refused, and has left a file that was not there
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tsdfm.cli import main
from tsdfm.errors import UserError

PATIENCE = 20  # seconds


@dataclass(frozen=True)
class Case:
    """What is done to the world, and then with it: `words` of the command line, or a `call` of Python.

    `wanted` is "refused", "works", or "either" where both are right as long as it is done properly. What `begins`
    before the fault can be seen may leave what it made until then.
    """

    root: str
    name: str
    words: tuple[str, ...] = ()
    harm: Callable[[Path], object] | None = None
    call: Callable[[Path], object] | None = None
    wanted: str = "refused"
    needs: tuple[str, ...] = ()
    begins: bool = False
    environ: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: well, or by one of the kinds above; `said` is what it said on stderr."""

    case: Case
    kind: str
    said: str


class Hang(BaseException):
    """It takes too long."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def snapshot(home: Path) -> dict[str, str]:
    """The hash of every file."""
    out = {}
    for folder, _, files in os.walk(home):
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118 (names that are no text)
            if os.path.isfile(path):  # noqa: PTH113
                with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
                    out[path] = hashlib.md5(file.read()).hexdigest()
    return out


@contextlib.contextmanager
def surroundings(case: Case, home: Path) -> Iterator[None]:
    before = dict(os.environ)
    for name, value in case.environ.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    try:
        with contextlib.chdir(home):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def try_case(case: Case, world: Path, place: Path) -> Outcome:
    """Try one case on a fresh copy of the world at `place`."""
    shutil.rmtree(place, ignore_errors=True)
    if case.needs:
        place.mkdir(parents=True)
        for name in case.needs:
            source = world / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
    else:
        shutil.copytree(world, place)
    said, told = io.StringIO(), io.StringIO()
    with surroundings(case, place):
        if case.harm is not None:
            case.harm(place)
        before = snapshot(place)
        kind = "well"
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
            try:
                with at_most(PATIENCE):
                    code = do(case, place)
                kind = judged(case, code, said.getvalue())
            except Hang:
                kind = "hang"
            except BaseException:
                traceback.print_exc(file=sys.stderr)
                kind = "traceback"
        after = snapshot(place)
    if kind == "well" and case.wanted != "works" and code == 2:
        changed = [path for path, hashed in before.items() if after.get(path) != hashed]
        new = [path for path in after if path not in before and not case.begins]
        kind = f"lost {changed[0]}" if changed else f"litter {new[0]}" if new else kind
    return Outcome(case, kind, said.getvalue())


def do(case: Case, place: Path) -> int:
    if case.call is None:
        return main(list(case.words))
    try:
        case.call(place)
    except UserError as problem:
        print(f"tsdfm: {problem}", file=sys.stderr)
        return 2
    return 0


def judged(case: Case, code: Any, said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("tsdfm: ")]
    if code == 2:
        if case.wanted == "works":
            return "refused"
        return "well" if len(lines) == 1 and said.splitlines()[-1] == lines[0] else "wordy"
    if code == 0:
        return "silent" if case.wanted == "refused" else "well"
    return "traceback"
