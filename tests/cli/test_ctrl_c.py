"""Ctrl-C by real signals: the first is answered at once, also while compiling; a second ends the command."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import slow_compiler

from processes import Child
from tsdfm.engine.signals import ECHO
from tsdfm.store.checkpoint import Store

RECIPE = """
[corpus]
name = "world:small"
limit = 60
[tokens]
length = 36
tokenizer = "byte"
[models.teacher]
method = "dfm"
net = { width = 16, depth = 1, heads = 2 }
loop = { steps = 5, batch = 2, compile = true }
optim.warmup = 1
eval_rows = 2
eval_times = 1
[models.one]
method = "fs-dfm"
loop = { steps = 2, batch = 2 }
optim.warmup = 1
"""
ANSWER = "stopping after this step; Ctrl-C again ends now\n"


@contextlib.contextmanager
def pipeline(folder: Path, *words: str) -> Iterator[Child]:
    """A pipeline whose compiler has begun its work."""
    (folder / "tiny.toml").write_text(RECIPE)
    command = ["pipeline", str(folder / "tiny.toml"), "--out", str(folder / "out"), *words]
    child = Child(slow_compiler.main, folder / "go", *command)
    try:
        wait_for(child, "the compiler works\n")
        yield child
    finally:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(child: Child, line: str) -> None:
    while line not in child.said().splitlines(keepends=True):
        assert child.poll() is None, f"{line!r} was never said, but {child.said()}"
        time.sleep(0.01)


def ended(child: Child, folder: Path) -> str:
    """What the command says after its answer until it ends by Ctrl-C; its compiler works no longer."""
    (folder / "go").touch()
    assert child.wait() == 130, child.said()
    return child.said().partition(ANSWER)[2]


def test_the_first_is_answered_while_compiling_and_the_step_is_saved(tmp_path: Path) -> None:
    with pipeline(tmp_path) as child:
        os.kill(child.pid, signal.SIGINT)
        wait_for(child, ANSWER)
        rest = ended(child, tmp_path)
    assert "stopped after step 1, saved; the same command goes on\n" in rest
    assert Store(tmp_path / "out" / "teacher-uniform").steps() == [1]
    assert not (tmp_path / "out" / "one-uniform").exists()


def test_the_second_ends_at_once_and_nothing_is_half_written(tmp_path: Path) -> None:
    with pipeline(tmp_path) as child:
        os.kill(child.pid, signal.SIGINT)
        wait_for(child, ANSWER)
        time.sleep(2 * ECHO)  # one that comes with the first is an echo of it
        os.kill(child.pid, signal.SIGINT)
        assert child.wait() == 130
        assert child.said().partition(ANSWER)[2] == "tsdfm: interrupted\n"
    run = tmp_path / "out" / "teacher-uniform"
    assert Store(run).steps() == []
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]


def test_one_in_the_last_step_ends_a_pipeline_after_it(tmp_path: Path) -> None:
    with pipeline(tmp_path, "--set", "teacher.loop.steps=1") as child:
        os.kill(child.pid, signal.SIGINT)
        wait_for(child, ANSWER)
        rest = ended(child, tmp_path)
    assert "teacher-uniform: 1 steps, " in rest
    assert not (tmp_path / "out" / "one-uniform").exists()
