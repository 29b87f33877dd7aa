"""ReMDM's step against its transition matrix, and the equalities with MDLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.flow import Cosine, Mask, Polynomial, RowNoise, Uniform, jump_from, solve
from tsdfm.flow.psi import PsiJump, Steady
from tsdfm.methods import jump_for, method
from tsdfm.methods.remdm import ConfidenceReMDM, ReMDMPace, with_eta
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec

V, N = 3, 40_000
SOURCE = Mask(V)
P = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
SHAPE = Shape(width=16, depth=1, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)


def noise(rows: int, seed: int = 0) -> RowNoise:
    return RowNoise(seed, torch.arange(rows))


def law(jump: Any, token: int, t: float, h: float) -> torch.Tensor:
    """Shares of what a token becomes in one step, over N rows."""
    x = torch.full((N, 1), token)
    times = (torch.full((N,), value, dtype=torch.float64) for value in (t, h))
    moved = jump(x, P.log().expand(N, 1, V), *times, noise(N))
    return torch.bincount(moved.flatten(), minlength=V + 1) / N


@pytest.mark.parametrize(("kind", "eta"), [("cap", 0.3), ("cap", 0.9), ("rescale", 0.4)])
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()])
def test_one_step_has_the_law_of_its_matrix(kind: str, eta: float, schedule: Any) -> None:
    jump, t, h = with_eta(kind, schedule, SOURCE, eta), 0.4, 0.25
    before, after = (float(schedule.kappa(torch.tensor(x, dtype=torch.float64))) for x in (t, t + h))
    most = min(1.0, (1 - after) / before)
    sigma = min(eta, most) if kind == "cap" else eta * most
    reveal = (after - (1 - sigma) * before) / (1 - before)
    wanted = torch.cat([reveal * P, torch.tensor([1 - reveal])])
    assert law(jump, V, t, h).tolist() == pytest.approx(wanted.tolist(), abs=0.012)  # five standard errors
    assert law(jump, 1, t, h).tolist() == pytest.approx([0.0, 1 - sigma, 0.0, sigma], abs=0.012)
    assert before * (1 - sigma) + (1 - before) * reveal == pytest.approx(after)  # the schedule is kept


def test_the_last_step_reveals_all_and_takes_nothing_back() -> None:
    for kind in ("cap", "rescale"):
        jump = with_eta(kind, Polynomial(1.0), SOURCE, 0.9)
        assert law(jump, V, 0.75, 0.25)[V] == 0
        assert law(jump, 2, 0.75, 0.25)[2] == 1


@pytest.mark.parametrize("kind", ["cap", "rescale", "loop"])
def test_without_remasking_it_is_the_ancestral_step(kind: str) -> None:
    table = torch.randn(V + 1, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_0 = torch.full((64, 7), V)
    made = [
        solve(lambda x, t, h: table[x] + table[x].mean(1, keepdim=True), x_0, 6, jump, noise(64)).tokens
        for jump in (with_eta(kind, Polynomial(1.0), SOURCE, 0.0), jump_from("ancestral", Polynomial(1.0), SOURCE))
    ]
    if kind == "loop":  # its phases move α otherwise, and 6 steps are 6 steps: no mask is left
        assert int(made[0].max()) < V
    else:
        assert torch.equal(*made)


@pytest.mark.parametrize("steps", [3, 4, 8, 16, 33])
def test_the_phases_of_the_loop_are_whole_steps(steps: int) -> None:
    pace = ReMDMPace(Polynomial(1.0), SOURCE, 0.02, "loop")
    h = torch.tensor([1 / steps], dtype=torch.float64)
    rates = [pace.sigma(torch.tensor([k / steps], dtype=torch.float64), h) for k in range(steps)]
    alphas = [float(before) for before, _, _ in rates]
    assert alphas[0] == 0.0
    assert float(rates[-1][1]) == pytest.approx(1.0)
    assert all(float(after) == pytest.approx(before) for (_, after, _), before in zip(rates, alphas[1:], strict=False))
    looping = [float(sigma) > 0 for *_, sigma in rates]
    assert any(looping)
    assert not looping[0]
    assert not looping[-1]
    assert all(alphas[k] == pytest.approx(0.9) for k in range(steps) if looping[k])
    with pytest.raises(UserError, match="three equal steps"):
        pace.rates(torch.zeros(1), torch.tensor([0.5]))


def test_confidence_takes_back_the_least_sure() -> None:
    """About σ_max tokens a row and step; of two, the one that was written with less probability more often."""
    begun = ConfidenceReMDM(Polynomial(1.0), SOURCE).begin(torch.zeros(N, 2))
    assert begun.written is not None
    begun.written[:, 0], begun.written[:, 1] = 0.1, 0.9
    t, h = (torch.full((N,), value, dtype=torch.float64) for value in (0.5, 0.25))
    moved = begun(torch.zeros(N, 2, dtype=torch.int64), P.log().expand(N, 2, V), t, h, noise(N))
    back = (moved == V).double().mean(0)
    most, ratio = 0.25 / 0.5, torch.exp(torch.tensor(0.8))
    assert back.sum().item() == pytest.approx(most, abs=0.012)
    assert (back[0] / back[1]).item() == pytest.approx(ratio.item(), rel=0.06)
    again = begun(torch.full((N, 2), V), P.log().expand(N, 2, V), t, h, noise(N, 1))
    shown = again[:, 0] != V
    assert torch.allclose(begun.written[shown, 0], P[again[shown, 0]])  # remembered as written


def spec(source: str) -> VelocitySpec:
    return VelocitySpec(
        shape=SHAPE, vocab=V, source=source, schedule="poly:1", length=4, anchor=0, tokenizer="abc", step_size=False
    )


def test_by_name_and_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jump = jump_for("remdm-cap:0.25", spec("mask"))
    assert isinstance(jump, PsiJump)
    assert jump.pace.eta == 0.25  # type: ignore[attr-defined]
    assert jump_for("remdm-loop", spec("mask")).pace.eta == 0.02  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="mask source"):
        jump_for("remdm-conf", spec("uniform"))
    with pytest.raises(UserError, match=r"at most 0\.1"):
        jump_for("remdm-loop:0.2", spec("uniform"))
    for wrong in ("remdm-cap:2", "remdm-cap:x", "euler:3", "remdm-conf:x", "remdm-conf:0.3"):
        with pytest.raises(UserError):
            jump_for(wrong, spec("mask"))
    assert method("remdm").trains is False
    assert main(["train", "remdm", "--tokens", "a", "--out", str(tmp_path / "b")]) == 2
    assert "a way to sample" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "eta"), [("cap", 0.1), ("cap", 0.9), ("rescale", 0.4)])
def test_psi_is_remdm(kind: str, eta: float) -> None:
    """κ = 1 − σ/(1 − α_s) turns Duo's Ψ, as its authors write it, into ReMDM's two lines."""
    before, after = 0.4, 0.65
    t, h = (torch.tensor([x], dtype=torch.float64) for x in (before, after - before))
    pace = ReMDMPace(Polynomial(1.0), SOURCE, eta, kind)
    sigma = float(pace.sigma(t, h)[2])
    kappa = 1 - float(pace.rates(t, h)[2])
    assert kappa == pytest.approx(1 - sigma / (1 - after))
    reveal = (after - before) / (1 - before)
    psi = kappa * reveal + (1 - kappa) * after  # a [MASK]: the exact step, or a fresh x_0 noised to s
    assert psi == pytest.approx((after - (1 - sigma) * before) / (1 - before))
    assert (1 - kappa) * (1 - after) == pytest.approx(sigma)  # what is revealed: kept by both but for the noising


@pytest.mark.parametrize(("kind", "eta"), [("cap", 0.1), ("rescale", 0.4)])
def test_on_the_uniform_source_it_is_psi(kind: str, eta: float) -> None:
    schedule, t, h = Polynomial(1.0), 0.4, 0.25
    mine = with_eta(kind, schedule, Uniform(V), eta)
    share = eta if kind == "rescale" else min(eta, 1 - t - h) / (1 - t - h)
    theirs = PsiJump(schedule, Uniform(V), Steady(schedule, share))
    x = torch.randint(V, (500, 6), generator=torch.Generator().manual_seed(0))
    times = [torch.full((500,), value, dtype=torch.float64) for value in (t, h)]
    logits = P.log().expand(500, 6, V)
    assert torch.equal(mine(x, logits, *times, noise(500)), theirs(x, logits, *times, noise(500)))


def test_the_loop_tells_the_network_the_time_of_its_share() -> None:
    told = []

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        told.append(float(t[0]))
        return P.log().expand(*x.shape, V)

    x_0 = torch.zeros(2, 3, dtype=torch.int64)
    solve(model, x_0, 8, with_eta("loop", Cosine(), Uniform(V), 0.1), noise(2))
    shares = [float(Cosine().kappa(t)) for t in told]
    assert shares == pytest.approx([0.0, 0.225, 0.45, 0.675, 0.9, 0.9, 0.9, 0.9], abs=1e-6)
    del told[:]
    solve(model, x_0, 8, with_eta("cap", Cosine(), Uniform(V), 0.1), noise(2))
    assert told == pytest.approx([k / 8 for k in range(8)])
