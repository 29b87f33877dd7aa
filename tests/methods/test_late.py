"""Late grids: the jump's own times everywhere a text is written, and equal steps at power 1."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow import JUMPS, CumulativeJump, Mask, Polynomial, RowNoise, Source, Steps, Uniform, grid, jump_from, solve
from tsdfm.flow.late import LateJump
from tsdfm.methods import method

V = 5
every_source = pytest.mark.parametrize("source", [Uniform(V), Mask(V)], ids=["uniform", "mask"])


def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Answers that depend on the state, the time and the step."""
    places = torch.arange(V, dtype=torch.float64)
    return torch.cos(x[..., None] + places * (1 + t[:, None, None]) + 3 * h[:, None, None])


def written(jump: CumulativeJump, times: int | tuple[float, ...] | Steps) -> torch.Tensor:
    noise = RowNoise(2, torch.arange(64))
    x_0 = jump.source.draw((64, 7), noise, torch.device("cpu"))
    return solve(model, x_0, times, jump, noise).tokens


def test_the_times() -> None:
    jump = LateJump(Polynomial(1.0), Uniform(V), power=2.0)
    assert jump.steps_in(4) == ((0.0, 0.4375), (0.4375, 0.75), (0.75, 0.9375), (0.9375, 1.0))
    for power in (0.5, 1.0, 3.0, 8.0):
        for steps in (1, 4, 16, 64):
            path = LateJump(Polynomial(1.0), Uniform(V), power=power).steps_in(steps)
            assert (path[0][0], path[-1][1], len(path)) == (0.0, 1.0, steps)
            assert all(before[1] == after[0] for before, after in pairwise(path))
            sizes = [b - a for a, b in path]
            assert min(sizes) > 0
            if power > 1:
                assert sizes == sorted(sizes, reverse=True)
    ends = [end for _, end in LateJump(Polynomial(1.0), Uniform(V), power=1.0).steps_in(7)]
    assert [0.0, *ends] == pytest.approx(grid(7))


@pytest.mark.parametrize(("power", "steps"), [(8.0, 128), (12.0, 32), (16.0, 16), (1e-20, 4)])
def test_steps_too_short_to_tell_apart_are_refused(power: float, steps: int) -> None:
    jump = LateJump(Polynomial(1.0), Uniform(V), power=power)
    with pytest.raises(UserError, match=f"or {'lower' if power > 1 else 'raise'} the power"):
        jump.steps_in(steps)
    assert len(jump.steps_in(1)) == 1


@every_source
def test_a_walk_takes_the_jumps_own_times(source: Source) -> None:
    plain = JUMPS["cumulative" if source.mask is None else "ancestral"](Polynomial(1.0), source)
    late = jump_from("late:3", Polynomial(1.0), source)
    assert isinstance(late, LateJump)
    assert torch.equal(written(late, 6), written(plain, late.steps_in(6)))
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


def test_a_revision_is_the_last_step_once_more() -> None:
    late, draft = (jump_from(name, Polynomial(1.0), Uniform(V)) for name in ("late:2:2", "late:2"))
    assert isinstance(late, LateJump)
    assert isinstance(draft, LateJump)
    path = draft.steps_in(4)
    assert late.steps_in(6) == (*path, path[-1], path[-1])
    assert late.steps_in(2) == ((0.0, 1.0), (0.0, 1.0))
    assert late.steps_in(1) == ((0.0, 1.0),), "one pass is a draft"
    seen = list[tuple[float, float]]()

    def watched(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        seen.append((float(t[0]), float(t[0] + h[0])))
        return model(x, t, h)

    noise = RowNoise(2, torch.arange(64))
    made = solve(watched, late.source.draw((64, 7), noise, torch.device("cpu")), 6, late, noise)
    assert (made.nfe, seen) == (6, list(late.steps_in(6)))


def test_a_revision_draws_each_place_of_the_finished_text_from_the_posterior() -> None:
    late = jump_from("late:2:1", Polynomial(1.0), Uniform(V))
    assert isinstance(late, LateJump)
    logits = torch.tensor([3.0, 1.0, 0.0, 0.0, -1.0])
    noise, text = RowNoise(5, torch.arange(4000)), torch.zeros(4000, 3, dtype=torch.int64)
    after = solve(lambda x, t, h: logits.expand(*x.shape, V), text, late.steps_in(4)[-1:], late, noise).tokens
    shares = torch.bincount(after.flatten(), minlength=V).double() / after.numel()
    assert torch.allclose(shares, logits.double().softmax(-1), atol=0.015)


@pytest.mark.parametrize("dial", ["2:-1", "2:1.5", "2:nan", "2:inf", "2:x", "2:1:1", "2:"])
def test_what_is_no_number_of_revisions_is_refused(dial: str) -> None:
    with pytest.raises(UserError, match="late"):
        jump_from(f"late:{dial}", Polynomial(1.0), Uniform(V))


def test_masks_are_not_revised() -> None:
    with pytest.raises(UserError, match="stays"):
        jump_from("late:2:1", Polynomial(1.0), Mask(V))
    assert isinstance(jump_from("late:2:0", Polynomial(1.0), Mask(V)), LateJump)
