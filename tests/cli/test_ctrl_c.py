"""Ctrl-C by real signals: the first is answered at once, also while compiling; a second ends the command."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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


def slow_compiler() -> None:
    """`python test_ctrl_c.py …` is tsdfm with a compiler that says when it works, and works until it reads a line."""
    import torch

    from tsdfm.cli import main

    def compiler(graph: "torch.fx.GraphModule", _: object) -> object:
        print("the compiler works", file=sys.stderr, flush=True)
        sys.stdin.readline()
        return graph.forward

    setattr(torch, "compile", functools.partial(torch.compile, backend=compiler))  # noqa: B010
    sys.exit(main())


@contextlib.contextmanager
def pipeline(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A pipeline whose compiler has begun its work."""
    (folder / "tiny.toml").write_text(RECIPE)
    command = ["pipeline", str(folder / "tiny.toml"), "--out", str(folder / "out"), *words]
    child = subprocess.Popen(
        [sys.executable, __file__, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        wait_for(child, "the compiler works\n")
        yield child
    finally:
        child.kill()
        child.wait()


def wait_for(child: subprocess.Popen[str], line: str) -> None:
    assert child.stderr is not None
    before = []
    for said in child.stderr:
        before.append(said)
        if said == line:
            return
    raise AssertionError(f"{line!r} was never said, but {before}")


def ended(child: subprocess.Popen[str]) -> str:
    """What the command says until it ends by Ctrl-C; its compiler works no longer."""
    assert child.stdin is not None
    assert child.stderr is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write("\n" * 99)
        child.stdin.close()
    rest = child.stderr.read()
    assert child.wait() == 130, rest
    return rest


def test_the_first_is_answered_while_compiling_and_the_step_is_saved(tmp_path: Path) -> None:
    with pipeline(tmp_path) as child:
        os.kill(child.pid, signal.SIGINT)
        wait_for(child, ANSWER)
        rest = ended(child)
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
        assert child.stderr is not None
        assert child.stderr.read() == "tsdfm: interrupted\n"
    run = tmp_path / "out" / "teacher-uniform"
    assert Store(run).steps() == []
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]


def test_one_in_the_last_step_ends_a_pipeline_after_it(tmp_path: Path) -> None:
    with pipeline(tmp_path, "--set", "teacher.loop.steps=1") as child:
        os.kill(child.pid, signal.SIGINT)
        wait_for(child, ANSWER)
        rest = ended(child)
    assert "teacher-uniform: 1 steps, " in rest
    assert not (tmp_path / "out" / "one-uniform").exists()


if __name__ == "__main__":
    slow_compiler()
