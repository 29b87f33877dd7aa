"""DCD: the coupling and its cheaper twin, its times, and a training in rounds that is stopped inside one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tsdfm
from tsdfm.cli import main
from tsdfm.distil.parts import States
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.flow import Polynomial, RowNoise
from tsdfm.flow.gaussian import GaussianClock
from tsdfm.methods import method
from tsdfm.methods.duo_dcd import METHOD, Ahead, DCDLoop, DCDOptim, DCDSettings, RoundTimes
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest

f64 = torch.float64


def states(x_1: torch.Tensor, x_t: torch.Tensor, t: float, h: float) -> States:
    rows = torch.arange(len(x_1))
    times = (torch.full((len(x_1),), value, dtype=f64) for value in (t, h))
    return States(x_1, x_t, *times, len(x_1), len(x_1), RowNoise(5, rows), rows, 0, x_1.numel())


def test_the_coupling_is_that_of_shared_gaussians() -> None:
    """(x_t, x_s) of one text by Gaussian noise with one ε, and by the bridge: the same law of the pair."""
    rows, vocab, clock = 60_000, 4, GaussianClock(4, -2.0, 2.0)
    (r_t, r_s), (k_t, k_s), _ = clock.at(torch.tensor([0.4, 0.7], dtype=f64))
    x_1 = torch.full((rows, 1), 2)
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0), dtype=f64)
    own = torch.nn.functional.one_hot(x_1[:, 0], vocab)
    drawn = [(ratio * own + noise).argmax(-1) for ratio in (r_t, r_s)]
    theirs = torch.bincount(drawn[0] * vocab + drawn[1], minlength=vocab**2).double()

    u = RowNoise(1, torch.arange(rows)).uniform((rows, 2))
    x_t = torch.where(u[:, :1] < k_t, x_1, (u[:, 1:] * vocab).long())
    about = Ahead(spec_of(vocab), reverse=True)
    t, h = float(k_t), float(k_s - k_t)  # κ = t
    found = states(x_1, x_t, t, h)
    x_s = about.bridge(found, found.t, found.t + found.h)
    mine = torch.bincount(x_t[:, 0] * vocab + x_s[:, 0], minlength=vocab**2).double()
    assert torch.equal(mine > 0, theirs > 0)  # what never happens in one never does in the other
    both = mine + theirs > 0
    assert float(((mine - theirs)[both] ** 2 / (mine + theirs)[both]).sum()) < 30.0  # six degrees of freedom
    there = float((x_s == x_1).double().mean())
    assert there == pytest.approx(float(k_s + (1 - k_s) / vocab), abs=0.01)


def spec_of(vocab: int) -> VelocitySpec:
    shape = NetSettings(width=16, depth=1, heads=2, cond=8).shape()
    return VelocitySpec(
        shape=shape, vocab=vocab, source="uniform", schedule="poly:1", length=1, anchor=0, tokenizer="", logits="others"
    )


def test_times_are_pairs_one_step_of_the_clock_apart() -> None:
    rows = torch.arange(512)
    every = torch.ones(512, dtype=torch.bool)
    plain = RoundTimes(1 / 8, 10, Polynomial(1.0))
    for step, dt in ((0, 1 / 8), (9, 1 / 8), (10, 1 / 4), (25, 1 / 2)):
        t, h = plain.draw(every, RowNoise(0, rows), step)
        assert bool((h == dt).all())
        assert t.min() == 0
        assert t.max() < 1 - dt
        assert float((t == 0).double().mean()) == pytest.approx(dt, abs=0.02)  # as many begin at pure noise
    clock = GaussianClock(300, -3.0, 0.0)
    t, h = RoundTimes(1 / 8, 10, Polynomial(1.0), clock).draw(every, RowNoise(0, rows), 0)
    ends = clock.at(torch.tensor([0.0, 1.0], dtype=f64))[1]
    assert ends[0] - 1e-12 <= t.min()
    assert (t + h).max() <= ends[1] + 1e-12
    begin = plain.draw(every, RowNoise(0, rows), 0)[0]
    torch.testing.assert_close(clock.at(begin + 1 / 8)[1], t + h)


@pytest.fixture(scope="module")
def start(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = method("duo").settings(
        tokens=tokens,
        out=tmp_path_factory.mktemp("duo") / "run",
        eval_rows=8,
        eval_times=2,
        net=NetSettings(width=32, depth=1, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=20, batch=8, device="cpu", eval_every=0, save_every=0),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
    )
    return method("duo").train(settings)


def settings_for(tokens: Path, start: Path, out: Path, **given: Any) -> DCDSettings:
    """Three rounds of four steps; stopped after ten there is a checkpoint inside the third."""
    made: dict[str, Any] = {
        "start_steps": 16,
        "round": 4,
        "eval_rows": 8,
        "eval_times": 2,
        "loop": DCDLoop(steps=12, batch=8, device="cpu", eval_every=4, save_every=5, log_every=4, keep=5),
        "optim": DCDOptim(lr=2e-3, warmup=2, ema=0.9),
    }
    return DCDSettings(tokens=tokens, init_from=start, out=out, **{**made, **given})


@pytest.fixture(scope="module")
def trained(tokens: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> DCDSettings:
    settings = settings_for(tokens, start, tmp_path_factory.mktemp("dcd") / "run")
    METHOD.train(settings)
    return settings


def test_it_says_what_it_is(trained: DCDSettings) -> None:
    manifest = read_manifest(trained.out)
    model = manifest["model"]
    assert (manifest["stage"], manifest["bound"]) == ("duo-dcd", "Duo NELBO")
    assert (model["method"], model["logits"], model["clock"]) == ("duo-dcd", "others", "sigma")
    assert (model["jump"], model["rounds"], model["step_size"]) == ("duo-ancestral", 3, False)
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["kl"] > 0 for line in lines if "kl" in line)


def test_a_run_resumed_inside_a_round_is_the_unbroken_one(trained: DCDSettings, tmp_path: Path) -> None:
    """Its teacher is then neither the start nor the student of that step."""
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000012")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    for which in ("model", "ema"):
        mine, theirs = load_weights(out, which), load_weights(trained.out, which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    teacher = load_file(trained.out / "checkpoints" / "step-00000010" / "teacher.safetensors")
    assert int(teacher["round"]) == 2
    student = load_weights(trained.out, "model")
    assert not all(torch.equal(student[name], teacher[name]) for name in student)


def test_it_writes(trained: DCDSettings) -> None:
    model = tsdfm.load(trained.out, "cpu")
    for jump, passes in (("auto", 4), ("duo-greedy", 5)):
        made = model.sample(n=3, steps=4, seed=1, prefix="Mia", jump=jump)
        assert made.nfe == passes
        assert all(text.startswith("Mia") for text in made.texts)


def test_by_the_command_line_and_what_is_refused(
    trained: DCDSettings, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, way = tmp_path / "run", tmp_path / "way.json"
    words = ["train", "duo-dcd", "--tokens", str(tokens), "--init-from", str(trained.out), "--loop.batch", "4"]
    words += ["--loop.device", "cpu", "--eval-rows", "4", "--eval-times", "1", "--loop.steps", "2"]
    assert main([*words, "--out", str(run), "--clock", "t", "--divergence", "forward"]) == 0
    assert read_manifest(run)["model"]["rounds"] == 4  # three of its start, and one
    assert main(["sample", str(run), "--steps", "2", "--n", "1", "--save-trajectory", str(way)]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "no"), "--round", "1", "--start-steps", "1"]) == 2
    assert "longer than the whole way" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "given"), [("dfm", {}), ("dfm", {"source": "mask"}), ("sedd", {"source": "uniform"})])
def test_other_starts(name: str, given: dict[str, str], tokens: Path, tmp_path: Path) -> None:
    """A flow's uniform model is told t and predicts p(x_1 | x_t), and so does its student; others are refused."""
    found = method(name)
    start = found.train(
        found.settings(
            tokens=tokens, out=tmp_path / "start", eval_rows=4, eval_times=1, net=NetSettings(width=16, depth=1),
            loop=LoopSettings(steps=1, batch=4, device="cpu"), **given,
        )
    )  # fmt: skip
    settings = settings_for(tokens, start, tmp_path / "run", loop=DCDLoop(steps=2, batch=4, device="cpu"))
    if name == "dfm" and not given:
        model = read_manifest(METHOD.train(settings))["model"]
        assert (model["clock"], model["logits"], model["jump"]) == ("t", "plain", "duo-ancestral")
        assert tsdfm.load(tmp_path / "run", "cpu").sample(n=1, steps=2, jump="duo-greedy").nfe == 3
    else:
        with pytest.raises(UserError, match="uniform source" if name == "dfm" else "answers with scores"):
            METHOD.train(settings)
        assert not (tmp_path / "run").exists()
