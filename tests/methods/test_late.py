"""Late grids: the jump's own times everywhere a text is written, and equal steps at power 1."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow import JUMPS, CumulativeJump, Mask, Polynomial, RowNoise, Source, Uniform, grid, jump_from, solve
from tsdfm.flow.late import LateJump
from tsdfm.methods import method

V = 5
every_source = pytest.mark.parametrize("source", [Uniform(V), Mask(V)], ids=["uniform", "mask"])


def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Answers that depend on the state, the time and the step."""
    places = torch.arange(V, dtype=torch.float64)
    return torch.cos(x[..., None] + places * (1 + t[:, None, None]) + 3 * h[:, None, None])


def written(jump: CumulativeJump, times: int | tuple[float, ...]) -> torch.Tensor:
    noise = RowNoise(2, torch.arange(64))
    x_0 = jump.source.draw((64, 7), noise, torch.device("cpu"))
    return solve(model, x_0, times, jump, noise).tokens


def test_the_times() -> None:
    jump = LateJump(Polynomial(1.0), Uniform(V), power=2.0)
    assert jump.grid(4) == (0.0, 0.4375, 0.75, 0.9375, 1.0)
    for power in (0.5, 1.0, 3.0, 8.0):
        for steps in (1, 4, 16, 64):
            times = LateJump(Polynomial(1.0), Uniform(V), power=power).grid(steps)
            assert (times[0], times[-1], len(times)) == (0.0, 1.0, steps + 1)
            sizes = [b - a for a, b in pairwise(times)]
            assert min(sizes) > 0
            if power > 1:
                assert sizes == sorted(sizes, reverse=True)
    assert LateJump(Polynomial(1.0), Uniform(V), power=1.0).grid(7) == pytest.approx(grid(7))


@pytest.mark.parametrize(("power", "steps"), [(8.0, 128), (12.0, 32), (16.0, 16), (1e-20, 4)])
def test_steps_too_short_to_tell_apart_are_refused(power: float, steps: int) -> None:
    jump = LateJump(Polynomial(1.0), Uniform(V), power=power)
    with pytest.raises(UserError, match=f"or {'lower' if power > 1 else 'raise'} the power"):
        jump.grid(steps)
    assert len(jump.grid(1)) == 2


@every_source
def test_a_walk_takes_the_jumps_own_times(source: Source) -> None:
    plain = JUMPS["cumulative" if source.mask is None else "ancestral"](Polynomial(1.0), source)
    late = jump_from("late:3", Polynomial(1.0), source)
    assert isinstance(late, LateJump)
    assert torch.equal(written(late, 6), written(plain, late.grid(6)))
    assert not torch.equal(written(late, 6), written(plain, 6))
    assert torch.equal(written(late, grid(6)), written(plain, 6)), "a grid that is given goes before"
    equal = jump_from("late:1", Polynomial(1.0), source)
    assert torch.equal(written(equal, 8), written(plain, 8))


@pytest.mark.parametrize("dial", ["0", "-1", "17", "nan", "x"])
def test_a_power_that_makes_no_grid_is_refused(dial: str) -> None:
    with pytest.raises(UserError, match="late"):
        jump_from(f"late:{dial}", Polynomial(1.0), Uniform(V))
    with pytest.raises(UserError, match="a way to sample"):
        method("late").train(None)
