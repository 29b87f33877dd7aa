"""SEDD: its loss by hand, its steps against transition matrices, its trainings. Its bound is in `tests/exact`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsdfm
from tsdfm import kernels
from tsdfm.cli import main
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.flow import Cosine, Mask, Polynomial, RowNoise, Schedule, Source, Uniform, jump_from, solve
from tsdfm.flow.logits import log_odds, score_from_posterior
from tsdfm.kernels.fused import fused_loss
from tsdfm.methods.sedd import METHOD, SEDDLoss, SEDDSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest

f64 = torch.float64
K = 3


def by_hand(net: Tensor, x_1: int, x_t: int, t: float, source: Source, scaled: bool) -> Tensor:
    """The loss of one position by the formulas of the paper's public code, for κ = t; net [K] float64."""
    alpha, k = t, source.vocab
    e = 1 / alpha - 1  # e^σ − 1
    rate = 1 / alpha  # σ′
    if source.mask is not None:
        if x_t != source.mask:
            return net.sum() * 0
        log_s = net - math.log(e) - math.log(k) if scaled else net
        return rate * (log_s.exp().sum() - log_s[x_1] / e + (1 / e) * (math.log(1 / e) - 1))
    others = [y for y in range(k) if y != x_t]
    ratio = 1 - k / (e + k)
    pos = sum(net[y].exp() for y in others) / k
    if x_t == x_1:
        neg = ratio / k * sum(net[y] for y in others)
        const = (k - 1) / k * ratio * (math.log(ratio) - 1)
    else:
        neg = net[x_1] / e + sum(net[y] for y in others) / k
        const = ((-math.log(ratio) - 1) / ratio - (k - 2)) / k
    return rate * (pos - neg + const)


@pytest.mark.parametrize(
    ("source", "scaled"), [(Mask(5), True), (Mask(5), False), (Uniform(5), False)], ids=["scaled", "mask", "uniform"]
)
def test_the_loss_by_hand_and_by_kernels(source: Source, scaled: bool) -> None:
    made = torch.Generator().manual_seed(0)
    x_1 = torch.randint(0, 5, (3, 4), generator=made)
    x_0 = torch.full_like(x_1, 5) if source.mask is not None else torch.randint(0, 5, (3, 4), generator=made)
    x_t = torch.where(torch.rand(x_1.shape, generator=made) < 0.4, x_1, x_0)
    t = torch.tensor([0.05, 0.4, 0.9], dtype=f64)
    hidden, head = torch.randn(3, 4, 6, generator=made, dtype=f64), torch.nn.Linear(6, 5).double()
    loss = SEDDLoss(Polynomial(1.0), source, scaled)
    total = torch.zeros((), dtype=f64)
    logits = head(hidden)
    for b, i in itertools.product(range(3), range(4)):
        total = total + by_hand(logits[b, i], int(x_1[b, i]), int(x_t[b, i]), float(t[b]), source, scaled) / 12
    wanted = list(torch.autograd.grad(total, list(head.parameters())))
    found = loss.plain(head(hidden), x_1, x_t, t)
    assert found.item() == pytest.approx(total.item(), rel=1e-10)
    for mine, theirs in zip(torch.autograd.grad(found, list(head.parameters())), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    objective, weight = loss.fused(x_1, x_t, t)
    scale = (weight / 12).expand(-1, 4).flatten()
    for forced in (False, True):
        plain = (hidden, head) if not forced else (hidden.float(), torch.nn.Linear(6, 5))
        if forced:
            plain[1].load_state_dict(head.state_dict())
        with kernels.forced() if forced else kernels.without():
            fused = fused_loss(plain[0].flatten(0, 1), plain[1], objective, scale)
        assert fused.item() == pytest.approx(total.item(), rel=1e-4 if forced else 1e-10)
        for mine, theirs in zip(torch.autograd.grad(fused, list(plain[1].parameters())), wanted, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-3 if forced else 1e-9, atol=1e-4)


def step_law(name: str, score: Tensor, x: int, t: float, h: float, source: Source, schedule: Schedule) -> Tensor:
    """How often each token comes after one step from x by log s [K]: shares [tokens] of 40 000 rows."""
    rows = 40_000
    times = [torch.full((rows,), value, dtype=f64) for value in (t, h)]
    jump = jump_from(name, schedule, source)
    moved = jump(torch.full((rows, 1), x), score.expand(rows, 1, K), *times, RowNoise(5, torch.arange(rows)))
    return torch.bincount(moved[:, 0], minlength=source.tokens) / rows


def close(found: Tensor, wanted: Tensor) -> None:
    """A chi-square test at the level of one in 10⁵ (9 degrees of freedom at most); what cannot be never is."""
    possible = wanted > 1e-12
    assert not found[~possible].any()
    assert float((40_000 * (found - wanted)[possible] ** 2 / wanted[possible]).sum()) < 30


P = torch.tensor([0.6, 0.3, 0.1], dtype=f64)  # the data's law at one position


@pytest.mark.parametrize("x", range(K))
@pytest.mark.parametrize(("t", "h"), [(0.3, 0.2), (0.6, 0.4)])
def test_a_step_with_random_tokens(x: int, t: float, h: float) -> None:
    """The analytic step of a true score is the reverse transition q(x_s | x_t); Euler's is 1 + hσ′Q̄."""
    schedule, source = Polynomial(1.0), Uniform(K)
    q_t, q_s = (kappa * P + (1 - kappa) / K for kappa in (t, t + h))
    score, keep = (q_t / q_t[x]).log(), t / (t + h)
    forward = keep * torch.eye(K, dtype=f64) + (1 - keep) / K  # q(x_t | x_s)
    reverse = q_s * forward[:, x] / q_t[x]
    close(step_law("sedd-analytic", score, x, t, h, source, schedule), reverse)
    euler = h / t / K * q_t / q_t[x]
    euler[x] = 0
    euler[x] = 1 - euler.sum()
    last = t + h >= 1  # then it is the analytic one: a draw of the posterior
    close(step_law("sedd-euler", score, x, t, h, source, schedule), reverse if last else euler)


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
def test_a_step_with_masks(schedule: Schedule) -> None:
    """A learned score sums to Z·r, Z ≠ 1: so much likelier is [MASK] left. What is revealed stays."""
    source, t, h, z = Mask(K), 0.3, 0.2, 0.8
    score = (z * P).log() + float(log_odds(schedule, torch.tensor(t)))
    share = {
        "sedd-analytic": 1 - float(schedule.survival(t, t + h)),
        "sedd-euler": h * float(schedule.rate(t)),
    }
    for name, each in share.items():
        leave = z * each
        close(step_law(name, score, K, t, h, source, schedule), torch.cat([leave * P, torch.tensor([1 - leave])]))
        assert step_law(name, score, 1, t, h, source, schedule)[1] == 1
        assert step_law(name, score, K, 0.75, 0.25, source, schedule)[K] == 0  # the last step leaves no mask
    if isinstance(schedule, Polynomial):
        assert share["sedd-euler"] == pytest.approx(share["sedd-analytic"], rel=1e-12)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)])
def test_from_x_prediction_it_is_the_ancestral_step(temperature: float, top_p: float) -> None:
    """Token by token, temperature and top-p included; Euler's too, as the noise is log-linear."""
    source, schedule = Mask(6), Polynomial(1.0)
    table = torch.randn(7, 6, generator=torch.Generator().manual_seed(0), dtype=f64)

    def posterior(x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        return table[x] + table[x].mean(1, keepdim=True)

    def score(x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        return score_from_posterior(posterior(x, t, h), x, t[:, None], schedule, source)

    made = []
    for name, model in (("ancestral", posterior), ("sedd-analytic", score), ("sedd-euler", score)):
        noise = RowNoise(1, torch.arange(40))
        jump = jump_from(name, schedule, source)
        ways = {"temperature": temperature, "top_p": top_p}
        made.append(solve(model, torch.full((40, 9), 6), 7, jump, noise, time_dtype=f64, **ways).tokens)
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def settings_for(tokens: Path, out: Path, source: str) -> SEDDSettings:
    return SEDDSettings(
        tokens=tokens,
        out=out,
        source=source,  # type: ignore[arg-type]
        eval_rows=8,
        eval_times=4,
        net=NetSettings(width=32, depth=2, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=30, batch=8, device="cpu", eval_every=15, save_every=15, log_every=10),
        optim=OptimSettings(lr=1e-2, warmup=5, ema=0.8),
    )


@pytest.fixture(scope="module", params=["mask", "uniform"])
def trained(request: Any, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> SEDDSettings:
    settings = settings_for(tokens, tmp_path_factory.mktemp("sedd") / "run", request.param)
    METHOD.train(settings)
    return settings


def test_it_learns_and_says_what_it_is(trained: SEDDSettings) -> None:
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    bounds = [line["elbo"] for line in lines if "elbo" in line]
    assert bounds[-1] < bounds[0]
    manifest = read_manifest(trained.out)
    assert (manifest["stage"], manifest["bound"]) == ("sedd", "SEDD DWDSE")
    model = manifest["model"]
    kind = ("scaled-score", "poly:1") if trained.source == "mask" else ("score", "geometric")
    assert (model["logits"], model["schedule"]) == kind
    assert (model["clock"], model["jump"]) == ("sigma", "sedd-analytic")


def test_a_resumed_run_is_the_unbroken_one(trained: SEDDSettings, tmp_path: Path) -> None:
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000030")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    for which in ("model", "ema"):
        mine, theirs = load_weights(out, which), load_weights(trained.out, which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_it_writes_by_its_own_jumps_and_by_others(trained: SEDDSettings, tmp_path: Path, capsys: Any) -> None:
    model = tsdfm.load(trained.out, "cpu")
    way = tmp_path / "way.json"
    others = ["euler", "ancestral", "remdm-cap:0.2"] if trained.source == "mask" else ["euler", "hazard-cumulative"]
    for jump in ("auto", "sedd-euler", *others):
        made = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump=jump, temperature=0.9, top_p=0.95)
        assert made.nfe == 6
        assert int(made.tokens.max()) < model.velocity.spec.vocab
        assert all(text.startswith("Mia") for text in made.texts)
        if jump == "auto":
            one = model.sample(n=1, steps=6, seed=1, prefix="Mia", first=2, temperature=0.9, top_p=0.95)
            assert torch.equal(one.tokens[0], made.tokens[2])
            seen = model.sample(n=3, steps=6, seed=1, prefix="Mia", temperature=0.9, top_p=0.95, trajectory=True)
            assert torch.equal(seen.tokens, made.tokens)  # all logits at once, or those that may move
            assert seen.trajectory is not None
            assert all(0 <= step.confidence <= 1 for row in seen.trajectory.rows for step in row.steps)
            seen.trajectory.save(way)
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    gaps = model.sample(n=1, steps=4, infill="Mia has {1-2}.")  # the lengths are chosen by its own bound
    assert gaps.texts[0].startswith("Mia has")


def test_what_is_refused(tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "sedd", "--tokens", str(tokens), "--out", str(tmp_path / "run")]
    assert main([*words, "--source", "uniform", "--scale", "true"]) == 2
    assert "leave it out" in capsys.readouterr().err
    assert main([*words, "--schedule", "linear"]) == 2
    assert "geometric" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such dial"):
        jump_from("sedd-euler:2", Polynomial(1.0), Mask(K))
    assert not (tmp_path / "run").exists()
