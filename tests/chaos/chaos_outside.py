"""Faults from outside, each in a process of its own: streams closed or full, alphabets, signals, folders that go.

The processes are forked, so torch is loaded once; those for the first moments of a command start Python anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos_run import Case, Outcome

import tsdfm
from tsdfm.__main__ import main

SAMPLE = ("sample", "teacher-uniform", "--n", "1", "--steps", "1", "--device", "cpu")
TRAIN = ("teacher", "--tokens", "tokens", "--out", "new", "--net.width", "16", "--net.depth", "1", "--net.heads", "2")
TRAIN += ("--loop.steps", "2", "--loop.batch", "4", "--loop.device", "cpu", "--optim.warmup", "1", "--eval-rows", "2")
TRAIN += ("--eval-times", "1")
PATIENCE = 60


@dataclass(frozen=True)
class Process(Case):
    """A case in a process: what is done to its streams before, and the exit codes that are right."""

    before: Callable[[Path], object] | None = None
    codes: tuple[int, ...] = (0,)
    lines: int | None = None
    after: Callable[[Path], bool] | None = None
    interrupt_after: float | None = None
    alphabet: str = "utf-8"
    extra: dict[str, str] = field(default_factory=dict)


def run_process(case: Process, place: Path) -> Outcome:
    """Fork, arrange the streams, run the command, and look at how it ended."""
    said = place.parent / f"{place.name}.said"
    said.write_bytes(b"")
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(place)
            os.environ.update(case.extra)
            log = os.open(said, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if case.before is not None:
                case.before(place)
            for number, name in ((1, "stdout"), (2, "stderr")):
                if getattr(sys, name) is not None:
                    setattr(sys, name, open(number, "w", encoding=case.alphabet, closefd=False))  # noqa: SIM115
            sys.argv = ["tsdfm", *case.words]
            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            os.write(log, traceback.format_exc().encode("utf-8", "replace"))
            code = 99
        try:
            sys.stdout.flush()
            with contextlib.suppress(OSError):  # what cannot be said is not
                sys.stderr.flush()
        except Exception as problem:
            os.write(log, f"at the end: {problem!r}\n".encode())
            code = 120
        os._exit(code)
    return judged(case, place, said, wait_for(pid))


def wait_for(pid: int) -> int | None:
    """The exit code; None for a process that hung."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def judged(case: Process, place: Path, said: Path, code: int | None) -> Outcome:
    text = said.read_text(encoding="utf-8", errors="replace")
    kind = "well"
    if code is None:
        kind = "hang"
    elif "Traceback" in text or code in (99, 120) or "should not have happened" in text:
        kind = "traceback"
    elif code not in case.codes:
        kind = "silent" if code == 0 else f"refused with {code}"
    elif case.lines is not None and sum(line.startswith("tsdfm: ") for line in text.splitlines()) != case.lines:
        kind = "wordy"
    elif case.after is not None and not case.after(place):
        kind = "lost"
    return Outcome(case, kind, text)


START = """
import os, sys
import tsdfm
from tsdfm.__main__ import main
os.write(int(sys.argv.pop(1)), b"x")
sys.exit(main())
"""


def run_anew(case: Process, place: Path) -> Outcome:
    """Start Python anew, and interrupt it a moment after the command has begun."""
    said = place.parent / f"{place.name}.said"
    reader, writer = os.pipe()
    home = {"PYTHONPATH": str(Path(tsdfm.__file__).parent.parent)}
    with said.open("wb") as log:
        words = [sys.executable, "-c", START, str(writer), *case.words]
        environ = {**os.environ, **home, **case.extra}
        child = subprocess.Popen(words, cwd=place, stdout=log, stderr=log, env=environ, pass_fds=[writer])
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        time.sleep(case.interrupt_after or 0)
        child.send_signal(signal.SIGINT)
        try:
            code: int | None = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            code = None
    return judged(case, place, said, code)


def closed(*numbers: int) -> Callable[[Path], object]:
    def close(_: Path) -> None:
        for number in numbers:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)

    return close


def broken(number: int) -> Callable[[Path], object]:
    """A pipe whose reader has gone."""

    def break_it(_: Path) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, number)

    return break_it


def full(number: int) -> Callable[[Path], object]:
    return lambda _: os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def folder_gone(place: Path) -> None:
    gone = place / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def whole(place: Path) -> bool:
    """The training has ended as if nothing had been."""
    import json

    return (
        bool(json.loads((place / "new" / "manifest.json").read_text())["finished"])
        and not (place / "new/.lock").exists()
    )


def stream_cases() -> Iterator[Process]:
    for words, after in ((SAMPLE, None), (TRAIN, whole), (("--help",), None), (("doctor",), None)):
        name = words[0]
        for number in (0, 1, 2):
            yield Process("streams", f"{name}: {number} closed", words, before=closed(number), after=after)
        yield Process("streams", f"{name}: all closed", words, before=closed(0, 1, 2), after=after)
        yield Process("streams", f"{name}: stdout broken", words, before=broken(1), after=after)
        yield Process("streams", f"{name}: stderr broken", words, before=broken(2), after=after)
        prints = words is not TRAIN
        yield Process(
            "streams", f"{name}: stdout full", words, before=full(1), codes=(2,) if prints else (0,), after=after
        )
        yield Process("streams", f"{name}: stderr full", words, before=full(2), after=after)
        for each in ("ascii", "latin-1", "cp1252"):
            yield Process("streams", f"{name}: {each}", words, alphabet=each, after=after)
    shown = {"bundle": "card bundle", "way.json": "view way.json --terminal --seconds 0", "report": "report main ."}
    for needed, command in shown.items():
        words, given = tuple(command.split()), {"needs": (needed,)}
        for number, name in ((1, "stdout"), (2, "stderr")):
            yield Process("streams", f"{words[0]}: {name} broken", words, before=broken(number), **given)
        yield Process("streams", f"{words[0]}: ascii", words, alphabet="ascii", **given)
        yield Process("streams", f"{words[0]}: stdout full", words, before=full(1), codes=(2,), lines=1, **given)


def folder_cases() -> Iterator[Process]:
    corpus, view = ("corpus", "--path", "texts", "--out", "new"), ("view", "way.json", "--no-open")
    for words in (SAMPLE, TRAIN, corpus, view, ("doctor",), ("train", "dfm"), ("verify", "/")):
        yield Process(
            "folders", f"{words[0]}: the working folder is gone", words, before=folder_gone, codes=(2,), lines=1
        )
    for words in (("--help",), ("--version",), ("sample", "--help")):
        yield Process("folders", f"{' '.join(words)}: the working folder is gone", words, before=folder_gone)


def world_cases() -> Iterator[Process]:
    alone = ("WORLD_SIZE=x", "WORLD_SIZE=0", "WORLD_SIZE=-1", "WORLD_SIZE=", "WORLD_SIZE=" + "9" * 400, "WORLD_SIZE=2")
    alone += ("LOCAL_RANK=x", "RANK=x", "RANK=-1")
    two = ("RANK=x", "RANK=2 MASTER_ADDR=localhost", "RANK=0", "RANK=0 MASTER_ADDR=localhost")
    two += ("RANK=0 MASTER_ADDR=no.such.host.invalid MASTER_PORT=29500",)
    two += ("RANK=0 MASTER_ADDR=localhost MASTER_PORT=x", "RANK=0 MASTER_ADDR=localhost MASTER_PORT=99999999")
    wrong = [*alone, *(f"WORLD_SIZE=2 {each}" for each in two)]
    for words in wrong:
        given = {pair.partition("=")[0]: pair.partition("=")[2] for pair in words.split()}
        name = words[:60]
        yield Process("world", f"teacher: {name}", TRAIN, extra=given, codes=(2,), lines=1)
        if "WORLD_SIZE" in given:
            recipe = ("pipeline", "recipe.toml", "--out", "made")
            yield Process("world", f"pipeline: {name}", recipe, extra=given, codes=(2,), lines=1)


def signal_cases() -> Iterator[Process]:
    """Ctrl-C in the first moments, while torch is loaded, of a training that no machine has done by then."""
    long = (*TRAIN, "--loop.steps", "1000000")
    for number in range(24):
        moment = number**2 / 200  # s
        yield Process("signals", f"interrupted after {moment} s", long, codes=(130,), interrupt_after=moment)


def cases(_: Path) -> Iterator[Process]:
    yield from stream_cases()
    yield from folder_cases()
    yield from world_cases()
    yield from signal_cases()
