"""Two real processes under torchrun (gloo, CPU) against one: same losses and weights, and any checkpoint resumes."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_training
from toy_training import train

from processes import Child, torchrun
from tsdfm.engine.distributed import Processes
from tsdfm.engine.log import read_metrics
from tsdfm.store.checkpoint import Store, load_weights, read_state

ALONE = Processes()
TASK = {"semi": True}  # the averaged model is evaluated inside the loss, as in distillation
KINDS = ("ddp", "fsdp")


def two(jobs: list[dict[str, Any]]) -> Child:
    """Start the toy training on two processes."""
    return torchrun(toy_training.__file__, json.dumps(jobs))


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run, "train")]


def assert_same(a: Path, b: Path) -> None:
    """All tensors of two checkpoints agree up to the order of float32 sums."""
    assert read_state(a)["files"].keys() == read_state(b)["files"].keys()
    for which in ("model", "ema"):
        first, second = load_weights(a, which), load_weights(b, which)
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(value, second[name], rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process first; then two, for each kind: from scratch, with accumulation, resuming the one-process run."""
    root = tmp_path_factory.mktemp("runs")
    train(root / "one", ALONE, task=TASK)
    train(root / "poisoned", ALONE, task={**TASK, "poison": (2,)})
    train(root / "muon", ALONE, task=TASK, optim={"rule": "muon"})
    jobs = [{"out": str(root / "ddp-muon"), "task": TASK, "loop": {"parallel": "ddp"}, "optim": {"rule": "muon"}}]
    for kind in KINDS:
        half = root / f"{kind}-from-one"
        shutil.copytree(root / "one", half)
        shutil.rmtree(half / "checkpoints" / "step-00000006")
        jobs += [
            {"out": str(root / kind), "task": TASK, "loop": {"parallel": kind}},
            {"out": str(root / f"{kind}-micro"), "task": TASK, "loop": {"parallel": kind, "micro": 2}},
            {"out": str(root / f"{kind}-poisoned"), "task": {**TASK, "poison": [2]}, "loop": {"parallel": kind}},
            {"out": str(root / f"{kind}-compiled"), "task": TASK, "loop": {"parallel": kind, "compile": True}},
            {"out": str(half), "task": TASK, "loop": {"parallel": kind}, "net": {"seed": 9}, "resume": True},
        ]
    child = two(jobs)
    code, said = child.wait(), child.said()
    assert code == 0, said
    assert said.count("resuming at step 3 of 6") == 2, said  # one process speaks, once for each kind
    assert "Warning" not in said, said
    return root


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["{}", "{}-micro", "{}-compiled", "{}-from-one", "{}-poisoned"])
def test_two_processes_equal_one(runs: Path, kind: str, name: str) -> None:
    run, one = runs / name.format(kind), runs / ("poisoned" if "poisoned" in name else "one")
    assert losses(run) == pytest.approx(losses(one), rel=1e-4)
    assert_same(Store(run).at(6), Store(one).at(6))
    evaluations = [[line["elbo"] for line in read_metrics(r, "eval")] for r in (run, one)]
    assert evaluations[0] == pytest.approx(evaluations[1], rel=1e-4)
    assert [line["skipped"] for line in read_metrics(run, "train")] == ([0, 1, 1] if "poisoned" in name else [0, 0, 0])


def test_two_processes_with_muon_equal_one(runs: Path) -> None:
    assert losses(runs / "ddp-muon") == pytest.approx(losses(runs / "muon"), rel=1e-4)
    assert_same(Store(runs / "ddp-muon").at(6), Store(runs / "muon").at(6))
    assert losses(runs / "muon") != pytest.approx(losses(runs / "one"), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_resumes_two(runs: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(runs / kind, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    last = train(tmp_path / "run", ALONE, task=TASK, net={"seed": 9}, resume=True)
    assert_same(last, Store(runs / "one").at(6))
    assert losses(tmp_path / "run") == pytest.approx(losses(runs / "one"), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_optimiser_state_is_whole(runs: Path, kind: str) -> None:
    """The moments of a sharded run have full shapes and the values of one process."""
    from safetensors.torch import load_file

    mine, one = (load_file(Store(runs / n).at(6) / "optim.safetensors") for n in (kind, "one"))
    assert mine.keys() == one.keys()
    for name, value in one.items():
        torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=1e-6)


def test_sigterm_to_torchrun_saves_on_the_same_step_everywhere(tmp_path: Path) -> None:
    loop = {"steps": 100_000, "eval_every": 0, "save_every": 0, "log_every": 1, "parallel": "fsdp"}
    child = two([{"out": str(tmp_path), "loop": loop, "task": {"pause": 0.01}}])
    while not ((tmp_path / "metrics.jsonl").is_file() and len(read_metrics(tmp_path)) > 3):
        assert child.poll() is None, child.said()
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() != 0
    said = child.said()
    assert said.count("saved; the same command with --resume goes on") == 1, said
    step = Store(tmp_path).steps()[-1]
    assert read_state(Store(tmp_path).at(step))["step"] == step
    last = train(tmp_path, ALONE, loop={**loop, "steps": step + 1}, resume=True)
    assert last.name == f"step-{step + 1:08d}"


def test_an_error_on_process_0_stops_all_of_them(tmp_path: Path) -> None:
    """A used folder is seen by process 0 only; the other must not wait for it for ever."""
    train(tmp_path, ALONE)
    child = two([{"out": str(tmp_path)}])
    assert child.wait() != 0
    said = child.said()
    assert "use --resume" in said
    assert "error[0]" in said
