"""Two real processes under torchrun (gloo, CPU), DDP and FSDP2: the same student as one process makes."""

import json
from pathlib import Path
from typing import Any

import pytest
import student_parallel
import torch
from safetensors.torch import load_file

from processes import torchrun
from training import named_settings, student_of
from training import train as run
from tsdfm.engine.log import read_metrics
from tsdfm.judges.settings import JudgeLoop, JudgeOptim, JudgeTrainSettings
from tsdfm.judges.train import run as train_judge
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import load_weights

KINDS = ("ddp", "fsdp")


def plain(home: Path, out: Path, **loop: Any) -> dict[str, Any]:
    """TS-DFM with a row's entropy taken by itself. One row in four has a large step: in half of the micro-batches one
    process has none and the other has one, and the sharded semi-teacher must be called by both."""
    return {
        "tokens": str(home / "tokens"),
        "init_from": str(home / "teacher-mask"),
        "compass": str(home / "compass-mask"),
        "out": str(out),
        "policy": "sequence-to-token",
        "levels": "uniform",
        "share": 0.25,
        "fresh": "fit",
        "eval_rows": 4,
        "eval_times": 2,
        "probe_every": 2,
        "navigate": {"entropy": "vocab"},
        "loop": {"steps": 3, "batch": 4, "device": "cpu", "log_every": 1, "seed": 1, **loop},
        "optim": {"lr": 1e-3, "warmup": 1, "ema": 0.8},
    }


def matched(home: Path, out: Path, **loop: Any) -> dict[str, Any]:
    """IDLM with all that stands beside its student: auxiliary, running texts, watch, pooled frequencies, compass."""
    values = {name: value for name, value in plain(home, out, **loop).items() if name in ("tokens", "out", "loop")}
    return values | {
        "method": "idlm",
        "init_from": str(home / "teacher-mask"),
        "width": 0.1,
        "tilt": 0.3,
        "compass": str(home / "compass-mask"),
        "eval_rows": 4,
        "eval_times": 2,
        "auxiliary": {"alone": 1, "warmup": 1, "lr": 1e-3},
        "watch": {"every": 2, "least": 0.99, "rollback": 1},
        "optim": {"lr": 1e-3, "warmup": 1, "ema": 0.8},
    }


def reinforced(home: Path, out: Path, judge: Path) -> dict[str, Any]:
    """Reinforce, with the causal network beside its student."""
    values = {name: value for name, value in plain(home, out).items() if name in ("tokens", "out", "loop", "optim")}
    return values | {
        "method": "reinforce",
        "init_from": str(home / "teacher-mask"),
        "judge": str(judge),
        "own": str(judge),
        "entropy": 0.5,
        "width": 0.3,
        "passes": [2, 4],
        "first": 1,
        "texts": 2,
        "alone": 1,
        "eval_rows": 4,
        "eval_times": 2,
    }


def small_judge(tokens: Path, out: Path) -> Path:
    net, loop = NetSettings(width=32, depth=1, heads=2), JudgeLoop(steps=20, batch=16, device="cpu", eval_every=0)
    return train_judge(JudgeTrainSettings(tokens=tokens, out=out, net=net, loop=loop, optim=JudgeOptim(warmup=2)))


@pytest.fixture(scope="module")
def runs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parallel")
    run(student_of(plain(home, root / "one")))
    run(named_settings(matched(home, root / "matched-one")))
    judge = small_judge(home / "tokens", root / "judge")
    run(named_settings(reinforced(home, root / "reinforced-one", judge)))
    jobs = [plain(home, root / kind, parallel=kind, micro=1) for kind in KINDS]
    jobs += [matched(home, root / "matched"), reinforced(home, root / "reinforced", judge)]
    child = torchrun(student_parallel.__file__, json.dumps(jobs))
    code, said = child.wait(), child.said()
    assert code == 0, said
    assert "Warning" not in said, said
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_equal_one(runs: Path, kind: str) -> None:
    for part, names in (("train", ("loss", "kl", "small", "grad_norm", "nav/navigated")), ("eval", ("elbo", "kl"))):
        mine, one = read_metrics(runs / kind, part), read_metrics(runs / "one", part)
        assert len(mine) == len(one) > 0
        for a, b in zip(mine, one, strict=True):
            assert a.keys() == b.keys()
            for name in names:
                assert a[name] == pytest.approx(b[name], rel=1e-4), name
    for which in ("model", "ema"):
        first, second = load_weights(runs / kind, which), load_weights(runs / "one", which)
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(value, second[name], rtol=2e-3, atol=2e-4)


def test_a_matched_student_with_its_auxiliary_too(runs: Path) -> None:
    mine, one = (read_metrics(runs / name, "train") for name in ("matched", "matched-one"))
    for a, b in zip(mine, one, strict=True):
        assert a.keys() == b.keys()
        for name in ("loss", "aux", "gap", "text_bits", "pool_bits", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=2e-4, abs=1e-6), name
    step = "checkpoints/step-00000003"
    for name in ("model", "auxiliary", "good", "width"):
        first, second = (load_file(runs / run / step / f"{name}.safetensors") for run in ("matched", "matched-one"))
        for key, value in first.items():
            torch.testing.assert_close(value, second[key], rtol=2e-3, atol=2e-4)
    first, second = (load_file(runs / run / step / "texts.safetensors") for run in ("matched", "matched-one"))
    assert all(torch.equal(first[name], second[name]) for name in ("k", "j"))
    assert (first["z"] == second["z"]).double().mean() > 0.95  # a draw may differ where a sum was rounded otherwise


def test_a_reinforced_student_with_its_own_law_too(runs: Path) -> None:
    mine, one = (read_metrics(runs / name, "train") for name in ("reinforced", "reinforced-one"))
    for a, b in zip(mine, one, strict=True):
        assert a.keys() == b.keys()
        for name in ("loss", "nats", "gap", "places", "text_bits", "pool_bits", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5), name
    step = "checkpoints/step-00000003"
    for name in ("model", "own", "usual"):
        first, second = (
            load_file(runs / run / step / f"{name}.safetensors") for run in ("reinforced", "reinforced-one")
        )
        for key, value in first.items():
            torch.testing.assert_close(value, second[key], rtol=2e-3, atol=2e-4)
