"""Rows that share a call of the model, each with its own time, steps, dials and seed, go as they would alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tsdfm.flow.jump import CumulativeJump, EulerJump
from tsdfm.flow.noise import JoinedNoise, RowNoise
from tsdfm.flow.schedule import Polynomial
from tsdfm.flow.solver import grid, solve
from tsdfm.flow.source import Mask, Source, Uniform
from tsdfm.flow.walk import Limits, Shaper, Walk, begin

VOCAB, LENGTH = 7, 6
CPU = torch.device("cpu")


class Table:
    """A float64 "network" that sees a row, its t and its h, and no other row."""

    def __init__(self, source: Source) -> None:
        made = torch.Generator().manual_seed(0)
        self.table = torch.randn(source.tokens, VOCAB, generator=made, dtype=torch.float64)
        self.calls = list[int]()

    def __call__(self, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        self.calls.append(len(x))
        seen = self.table[x]
        return seen + seen.cumsum(1).roll(1, 1) / 3 * (1 + t + 2 * h).to(torch.float64)[:, None, None]


class Partial(Table):
    """The same, asked for some positions."""

    def look(self, x: Tensor, t: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
        logits = self(x, t, h).flatten(0, 1)
        return lambda places: logits[places]


ROWS: list[dict[str, Any]] = [  # seed, number, steps; what is given; dials; limits
    {"seed": 1, "number": 0, "steps": 3},
    {"seed": 1, "number": 5, "steps": 8, "given": [0, 1, 2], "dials": (0.7, 1.0)},
    {"seed": 9, "number": 0, "steps": 1, "dials": (0.0, 1.0)},
    {"seed": -3, "number": 2**40, "steps": 5, "given": [3], "dials": (1.3, 0.8), "limited": [4, 5]},
    {"seed": 1, "number": 5, "steps": 8, "dials": (0.7, 1.0)},
]


def start(model: Any, jump: Any, row: dict[str, Any]) -> tuple[Walk, Tensor]:
    noise = RowNoise(row["seed"], torch.tensor([row["number"]]))
    x_0 = jump.source.draw((1, LENGTH), noise, CPU)
    held = torch.zeros(1, LENGTH, dtype=torch.bool)
    held[0, row.get("given", [])] = True
    sets = torch.zeros(1, LENGTH, dtype=torch.int64)
    sets[0, row.get("limited", [])] = 1
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)
    allowed[1, :5] = False
    given = (held, torch.arange(LENGTH)[None]) if "given" in row else (None, None)
    limits = Limits(sets, allowed) if "limited" in row else None
    dials = [row.get("dials", (1.0, 1.0))]
    return begin(model, x_0, jump, noise, given=given, dials=dials, limits=limits, time_dtype=torch.float64)


def alone(model: Any, jump: Any, row: dict[str, Any]) -> Tensor:
    """The same row by `solve`."""
    walk, _ = start(model, jump, row)
    noise = RowNoise(row["seed"], torch.tensor([row["number"]]))
    x_0 = jump.source.draw((1, LENGTH), noise, CPU)
    temperature, top_p = row.get("dials", (1.0, 1.0))
    limits = None
    if walk.sets is not None and walk.shaper.allowed is not None:
        limits = Limits(walk.sets, walk.shaper.allowed)
    dials = {"temperature": temperature, "top_p": top_p, "limits": limits, "time_dtype": torch.float64}
    given = {"given": walk.held, "given_tokens": walk.fixed}
    return solve(model, x_0, row["steps"], jump, noise, **given, **dials).tokens


@pytest.mark.parametrize("kind", [EulerJump, CumulativeJump])
@pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)])
@pytest.mark.parametrize("network", [Table, Partial])
def test_rows_at_different_times_share_a_call(kind: Any, source: Source, network: Any) -> None:
    """Row k joins before the k-th call, and leaves when it is finished."""
    jump, model = kind(Polynomial(2.0), source), network(source)
    wanted = [alone(network(source), jump, row) for row in ROWS]
    waiting, done = list(enumerate(ROWS)), dict[int, Tensor]()
    live, walk, x = list[tuple[int, list[Any]]](), Walk(model, jump, RowNoise(0, torch.tensor([0])), Shaper(CPU)), None
    while waiting or live:
        if waiting:
            number, row = waiting.pop(0)
            new, x_0 = start(model, jump, row)
            walk, x = (Walk.together([walk, new], model), torch.cat([x, x_0])) if live else (new, x_0)
            live.append((number, list(pairwise(grid(row["steps"])))))
        times = torch.tensor([[a, b - a] for _, ((a, b), *_) in live], dtype=torch.float64)
        x, _ = walk.step(x, times[:, 0], times[:, 1])
        walk.shaper.check()
        done |= {number: x[n : n + 1] for n, (number, left) in enumerate(live) if len(left) == 1}
        stay = [n for n, (_, left) in enumerate(live) if len(left) > 1]
        live = [(number, left[1:]) for number, left in live if len(left) > 1]
        walk, x = walk.select(stay, torch.tensor(stay, dtype=torch.int64)), x[stay]
    assert all(torch.equal(done[number], tokens) for number, tokens in enumerate(wanted))
    assert max(model.calls) == 3  # they did share
    assert not torch.equal(done[1], done[4])  # what is given counts


def test_joined_noise_is_each_row_s_own() -> None:
    numbers = ((0, 0), (0, 1), (5, 0), (-7, 2**50))

    def parts() -> list[RowNoise]:
        return [RowNoise(seed, torch.tensor([row]), draws=count) for count, (seed, row) in enumerate(numbers)]

    own, joined = parts(), JoinedNoise.of(parts())
    for shape in ((LENGTH, 2), (LENGTH,), (3,)):
        wanted = torch.cat([noise.uniform((1, *shape)) for noise in own])
        assert torch.equal(joined.uniform((4, *shape)), wanted)
    some = JoinedNoise.of([joined.select(torch.tensor([2, 0])), RowNoise(8, torch.tensor([1, 3]))])
    wanted = torch.cat([*(own[n].uniform((1, 4)) for n in (2, 0)), RowNoise(8, torch.tensor([1, 3])).uniform((2, 4))])
    assert torch.equal(some.uniform((4, 4)), wanted)
    first = torch.cat([RowNoise(seed, torch.tensor([row])).uniform((1, 3)) for seed, row in numbers])
    assert torch.equal(JoinedNoise.begun(*zip(*numbers, strict=True)).uniform((4, 3)), first)
    with pytest.raises(ValueError, match="4 rows, 3 were asked for"):
        joined.uniform((3, 2))


def test_only_rows_of_one_jump_share() -> None:
    source = Mask(VOCAB)
    model, jumps = Table(source), [kind(Polynomial(1.0), source) for kind in (EulerJump, CumulativeJump)]
    walks = [start(model, jump, ROWS[0])[0] for jump in jumps]
    with pytest.raises(ValueError, match="the same jump"):
        Walk.together(walks, model)
