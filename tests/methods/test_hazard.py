"""Systematic hazard sampling: the plain jump's mean number of jumps, a far smaller variance, the same destinations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tsdfm.cli import main
from tsdfm.flow import JUMPS, Mask, Polynomial, RowNoise, Source, Uniform, solve
from tsdfm.methods import method

N, V, STEPS = 20_000, 4, 16
P = torch.full((V,), 1 / V, dtype=torch.float64)  # every token leaves alike, so that the means are equal exactly


def jumps_of(jump: Any, source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each row's one position moved before the last step, and where it ended."""
    counts = torch.zeros(N)
    noise = RowNoise(0, torch.arange(N))
    x_0 = source.draw((N, 1), noise, torch.device("cpu"))

    def count(step: Any) -> None:
        if step.index < STEPS - 1:
            counts.add_((step.before != step.after)[:, 0])

    done = solve(lambda x, t, h: P.log().expand(N, 1, V), x_0, STEPS, jump, noise, on_step=count)
    return counts, done.tokens[:, 0]


@pytest.mark.parametrize("source", [Uniform(V), Mask(V)])
@pytest.mark.parametrize("name", ["euler", "cumulative"])
def test_mean_variance_and_destinations(name: str, source: Source) -> None:
    plain = JUMPS[name](Polynomial(1.0), source)
    hazard = method("hazard").jumps()[f"hazard-{name}"](Polynomial(1.0), source)
    (a, ends_a), (b, ends_b) = jumps_of(plain, source), jumps_of(hazard, source)
    if source.mask is None:  # a [MASK] leaves sooner than a token, so there the means differ a little
        assert b.mean().item() == pytest.approx(a.mean().item(), abs=6 * a.std().item() / math.sqrt(N))
    assert b.var().item() < 0.6 * a.var().item()
    for ends in (ends_a, ends_b):
        shares = torch.bincount(ends, minlength=V) / N
        assert shares.tolist() == pytest.approx(P.tolist(), abs=0.02)
    assert bool((ends_b < V).all())


def test_rows_do_not_share_what_they_remember() -> None:
    """Two texts after each other are those of two fresh jumps, and a batch is its rows."""
    source = Uniform(V)
    jump = method("hazard").jumps()["hazard-cumulative"](Polynomial(1.0), source)

    def write(rows: torch.Tensor) -> torch.Tensor:
        noise = RowNoise(3, rows)
        x_0 = source.draw((len(rows), 5), noise, torch.device("cpu"))
        return solve(lambda x, t, h: P.log().expand(len(x), 5, V), x_0, 8, jump, noise).tokens

    whole = write(torch.arange(6))
    assert torch.equal(whole, write(torch.arange(6)))
    assert torch.equal(whole[4:], write(torch.arange(4, 6)))


def test_it_does_not_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "hazard"]) == 2
    assert "a way to sample" in capsys.readouterr().err
