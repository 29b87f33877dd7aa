"""The solver: grids, exact NFE, given positions, callbacks, bad models, and rows that do not know their batch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow.jump import CumulativeJump, EulerJump
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial
from tsdfm.flow.solver import Step, check_grid, grid, solve
from tsdfm.flow.source import Mask, Source, Uniform

VOCAB = 7
CPU = torch.device("cpu")
every_jump = pytest.mark.parametrize("kind", [EulerJump, CumulativeJump])
every_source = pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)])


class RowModel:
    """A float64 "network" that mixes the positions of a row, and only those, in a fixed order of operations."""

    def __init__(self, source: Source) -> None:
        made = torch.Generator().manual_seed(0)
        self.table = torch.randn(source.tokens, VOCAB, generator=made, dtype=torch.float64)
        self.calls = 0

    def __call__(self, x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        seen = self.table[x]
        context = sum(seen.roll(shift, 1) / (shift + 1) for shift in range(x.shape[1]))
        assert isinstance(context, torch.Tensor)
        return context * (1 + t + h).to(torch.float64)[:, None, None]


def start(source: Source, rows: list[int], length: int = 6, seed: int = 3) -> tuple[torch.Tensor, RowNoise]:
    noise = RowNoise(seed, torch.tensor(rows))
    return source.draw((len(rows), length), noise, CPU), noise


def test_grids() -> None:
    assert grid(4) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert grid(1) == (0.0, 1.0)
    for steps in range(1, 200):
        points = [0.0, *(end for _, end in check_grid(grid(steps)))]
        assert len(points) == steps + 1
        assert points[-2] + (points[-1] - points[-2]) == 1.0  # the last step ends at 1 exactly
    assert check_grid(torch.tensor([0.0, 0.5, 1.0])) == ((0.0, 0.5), (0.5, 1.0))


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps(steps: int) -> None:
    with pytest.raises(UserError, match="at least 1"):
        grid(steps)
    x_0, noise = start(Mask(VOCAB), [0])
    with pytest.raises(UserError, match="at least 1"):
        solve(RowModel(Mask(VOCAB)), x_0, steps, EulerJump(Cosine(), Mask(VOCAB)), noise)


@pytest.mark.parametrize(
    "times", [[], [0.0], [0.1, 1.0], [0.0, 0.9], [0.0, 0.5, 0.5, 1.0], [0.0, 0.6, 0.5, 1.0], [0.0, math.nan, 1.0]]
)
def test_bad_grids(times: list[float]) -> None:
    with pytest.raises(UserError, match="time grid"):
        check_grid(times)


def test_steps_by_themselves() -> None:
    """A walk may be taken up anywhere, and go back; a step must lead on."""
    source = Uniform(VOCAB)
    x_0, noise = start(source, [0, 1])
    jump, seen = CumulativeJump(Cosine(), source), list[Step]()
    path = ((0.5, 0.75), (0.75, 1.0), (0.75, 1.0))
    assert solve(RowModel(source), x_0, path, jump, noise, on_step=seen.append).nfe == 3
    assert [(step.t, step.t + step.h) for step in seen] == list(path)
    for wrong in ((0.5, 0.5), (0.5, 0.25), (-0.1, 0.5), (0.5, 1.1), (math.nan, 1.0)):
        with pytest.raises(UserError, match="a later one"):
            solve(RowModel(source), x_0, (wrong,), jump, noise)


@every_jump
@every_source
@pytest.mark.parametrize("times", [1, 2, 7, [0.0, 0.01, 0.3, 0.95, 1.0]])
def test_one_call_a_step_and_no_mask_at_the_end(kind: Any, source: Source, times: Any) -> None:
    model = RowModel(source)
    x_0, noise = start(source, list(range(20)))
    steps: list[Step] = []
    solution = solve(model, x_0, times, kind(Polynomial(2.0), source), noise, on_step=steps.append)
    expected = times if isinstance(times, int) else len(times) - 1
    assert solution.nfe == model.calls == len(steps) == expected
    assert (solution.tokens < VOCAB).all()
    assert [s.index for s in steps] == list(range(expected))
    assert steps[0].t == 0.0
    assert steps[-1].t + steps[-1].h == 1.0
    assert torch.equal(steps[0].before, x_0)
    assert torch.equal(steps[-1].after, solution.tokens)
    for before, after in pairwise(steps):
        assert torch.equal(before.after, after.before)


@every_jump
@every_source
@pytest.mark.parametrize("schedule", [Polynomial(2.5), Cosine()])
def test_a_sample_does_not_know_its_batch(kind: Any, source: Source, schedule: Any) -> None:
    """Bitwise in float64: alone, in a batch, in another batch, in another order."""
    model, jump = RowModel(source), kind(schedule, source)

    def sample(rows: list[int], **dials: float) -> dict[int, list[int]]:
        x_0, noise = start(source, rows)
        tokens = solve(model, x_0, 9, jump, noise, time_dtype=torch.float64, **dials).tokens
        return dict(zip(rows, tokens.tolist(), strict=True))

    everyone = list(range(37))
    for dials in ({}, {"temperature": 0.7, "top_p": 0.8}):
        together = sample(everyone, **dials)
        assert sample(everyone[::-1], **dials) == together
        assert sample([5, 100, 17], **dials)[17] == together[17]
        for row in (0, 5, 36):
            assert sample([row], **dials)[row] == together[row]
        assert len({tuple(tokens) for tokens in together.values()}) > 10  # and the rows do differ


@every_jump
@every_source
def test_given_positions_hold_at_every_call(kind: Any, source: Source) -> None:
    rows = 12
    x_0, noise = start(source, list(range(rows)))
    held = torch.rand(x_0.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    tokens = torch.randint(0, VOCAB, x_0.shape, generator=torch.Generator().manual_seed(2))
    inner = RowModel(source)

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        assert torch.equal(x[held], tokens[held])
        return inner(x, t, h)

    def watch(step: Step) -> None:
        assert torch.equal(step.after[held], tokens[held])

    solution = solve(model, x_0, 8, kind(Cosine(), source), noise, given=held, given_tokens=tokens, on_step=watch)
    assert torch.equal(solution.tokens[held], tokens[held])
    assert (solution.tokens < VOCAB).all()
    assert (solution.tokens != tokens)[~held].any()


def test_a_prefix_may_be_given_once_for_all_rows() -> None:
    source = Mask(VOCAB)
    x_0, noise = start(source, [0, 1, 2])
    prefix, tokens = torch.arange(6) < 2, torch.tensor([4, 5, 0, 0, 0, 0])
    made = solve(RowModel(source), x_0, 3, CumulativeJump(Cosine(), source), noise, given=prefix, given_tokens=tokens)
    assert made.tokens[:, :2].tolist() == [[4, 5]] * 3


def test_bad_given_positions() -> None:
    source = Mask(VOCAB)
    x_0, noise = start(source, [0, 1])
    jump, model = EulerJump(Cosine(), source), RowModel(source)
    held = torch.ones_like(x_0, dtype=torch.bool)
    with pytest.raises(UserError, match="both or neither"):
        solve(model, x_0, 2, jump, noise, given=held)
    with pytest.raises(UserError, match="outside the vocabulary"):
        solve(model, x_0, 2, jump, noise, given=held, given_tokens=torch.full_like(x_0, VOCAB))  # [MASK]
    with pytest.raises(UserError, match="shapes"):
        solve(model, x_0, 2, jump, noise, given=held[:, :3], given_tokens=x_0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@every_source
def test_logits_that_are_not_numbers(value: float, source: Source) -> None:
    inner = RowModel(source)

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        logits = inner(x, t, h)
        if inner.calls == 2:
            logits[0, 3, 2] = value
        return logits

    x_0, noise = start(source, [0, 1])
    with pytest.raises(UserError, match="not numbers"):
        solve(model, x_0, 4, CumulativeJump(Cosine(), source), noise)


@every_source
def test_greedy_is_the_likeliest_token(source: Source) -> None:
    logits = torch.randn(1, 6, VOCAB, generator=torch.Generator().manual_seed(4))
    x_0, noise = start(source, list(range(5)))
    jump = CumulativeJump(Polynomial(1.0), source)
    made = solve(lambda x, t, h: logits.expand(5, 6, VOCAB), x_0, 4, jump, noise, temperature=0.0)
    assert torch.equal(made.tokens, logits.argmax(-1).expand(5, 6))


def test_a_generator_serves_as_noise() -> None:
    source = Uniform(VOCAB)
    made = []
    for seed in (1, 1, 2):
        noise = torch.Generator().manual_seed(seed)
        x_0 = source.draw((8, 6), noise, CPU)
        made.append(solve(RowModel(source), x_0, 4, EulerJump(Cosine(), source), noise).tokens)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_the_model_sees_the_times_it_is_asked_for() -> None:
    source, seen = Mask(VOCAB), []

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        assert t.dtype == h.dtype == torch.float32
        seen.append((t.tolist(), h.tolist()))
        return torch.zeros(*x.shape, VOCAB)

    x_0, noise = start(source, [0, 1])
    solve(model, x_0, [0.0, 0.25, 1.0], CumulativeJump(Cosine(), source), noise)
    assert seen == [([0.0] * 2, [0.25] * 2), ([0.25] * 2, [0.75] * 2)]
