"""What a pipeline says: a line or two a stage, everything with -v, and after Ctrl-C the command that goes on."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

import tsdfm
from processes import script
from tsdfm import terminal
from tsdfm.cli import main
from tsdfm.engine.log import outcome, read_metrics
from tsdfm.machine import machine

TINY = """
[corpus]
name = "world:small"
limit = 300
valid = 0.1
[tokens]
length = 36
layout = "document"
[models.teacher]
method = "dfm"
net = { width = 32, depth = 1, heads = 2 }
loop = { steps = 3, batch = 4, log_every = 1 }
optim.warmup = 1
eval_rows = 4
eval_times = 2
[models.one]
method = "fs-dfm"
loop = { steps = 2, batch = 4, log_every = 1 }
optim.warmup = 1
eval_rows = 4
eval_times = 2
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


def said(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["pipeline", *words]) == 0
    return capfd.readouterr().err.splitlines()


def test_a_stage_says_what_was_made_and_where_it_lies(
    recipe: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    lines = said(capfd, recipe, "--out", str(out))
    made = [line for line in lines if " → " in line]
    assert [line.split(":")[0] for line in made] == ["corpus", "tokens", "teacher-uniform", "one-uniform"]
    assert all(line.endswith(f"→ {out / line.split(':')[0]}") for line in made)
    assert "documents held out" in made[0]
    assert "rows of 36 tokens" in made[1]
    assert made[2].startswith("teacher-uniform: 3 steps, ")
    assert " nats a token (lower is better) → " in made[2]
    assert lines == ["── text", *made[:2], lines[3], made[2], lines[5], made[3], f"── done: {out}"]
    assert lines[3] == "── teacher, uniform source: 3 steps of dfm"
    lock = out / "teacher-uniform" / ".lock"
    lock.write_text(json.dumps({"machine": machine(), "pid": 0}))  # of a process that was killed when it had finished
    again = said(capfd, recipe, "--out", str(out))
    assert sum("there already" in line for line in again) == 4
    assert not lock.exists()
    everything = said(capfd, recipe, "--out", str(tmp_path / "other"), "-v")
    assert any(line.startswith("step 3/3  loss ") for line in everything)
    assert any(line.startswith("step 3  elbo ") for line in everything)
    assert made[3] == f"one-uniform: {outcome(out / 'one-uniform', 2)} → {out / 'one-uniform'}"
    assert f"elbo {read_metrics(out / 'one-uniform', 'eval')[-1]['elbo']:.2f} nats" in made[3]


def test_a_single_command_says_everything_and_what_comes_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine" / "corpus"
    assert main(["corpus", "--name", "world:small", "--limit", "40", "--valid", "0.2", "--out", str(out)]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == f"next: tsdfm tokens --corpus {out} --out {out.parent / 'tokens'}"
    with terminal.one_command(), terminal.many_stages(verbose=True):
        terminal.made("x", "made", out, "y")
        terminal.detail("shown")
    with terminal.many_stages(verbose=False):
        terminal.detail("not shown")
        terminal.console(stderr=True).print("nor this")
    assert capfd.readouterr().err == f"x: made → {out}\nshown\n"


def test_after_ctrl_c_the_advice_is_the_command_that_goes_on(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["pipeline", recipe, "--out", str(out), "--set", "teacher.loop.steps=100000"]
    child = script(str(Path(tsdfm.__file__).parent / "__main__.py"), *words)
    metrics = out / "teacher-uniform" / "metrics.jsonl"
    while child.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") > 2):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    code, err = child.wait(), child.said()
    assert code == 130, err
    assert "stopping after this step; Ctrl-C again ends now\n" in err
    assert "saved; the same command goes on\n" in err
    assert "--resume" not in err
