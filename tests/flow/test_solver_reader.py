"""A solver that asks for some logits alone writes the same tokens, and asks for no more than it needs; and the bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import walk
from tsdfm.flow.jump import CumulativeJump, EulerJump
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial
from tsdfm.flow.solver import Step, solve
from tsdfm.flow.source import Mask, Source, Uniform
from tsdfm.flow.walk import Limits, PartialModel

VOCAB, ROWS, LENGTH = 7, 9, 6
CPU = torch.device("cpu")
every_jump = pytest.mark.parametrize("kind", [EulerJump, CumulativeJump])
every_source = pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)])


class Table:
    """A float64 "network" in which every position sees its whole row."""

    def __init__(self, source: Source) -> None:
        made = torch.Generator().manual_seed(0)
        self.table = torch.randn(source.tokens, VOCAB, generator=made, dtype=torch.float64)
        self.passes = 0

    def __call__(self, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        self.passes += 1
        seen = self.table[x]
        return seen + seen.cumsum(1).roll(1, 1) / 3 * (1 + t + h).to(torch.float64)[:, None, None]


class Asked(Table):
    """The same with `look`; it remembers the state of each pass and what was asked of it."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.seen: list[tuple[Tensor, list[int]]] = []

    def look(self, x: Tensor, t: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
        logits, places = self(x, t, h).flatten(0, 1), list[int]()
        self.seen.append((x.clone(), places))

        def read(at: Tensor) -> Tensor:
            places.extend(at.tolist())
            return logits[at]

        return read


def noise_and_start(source: Source) -> tuple[RowNoise, Tensor]:
    noise = RowNoise(3, torch.arange(ROWS))
    return noise, source.draw((ROWS, LENGTH), noise, CPU)


def both(source: Source, jump: Any, times: Any, **given: Any) -> tuple[Tensor, Tensor, Asked]:
    """Tokens by all logits, tokens by some, and what was asked for."""
    whole, some, made = Table(source), Asked(source), list[Tensor]()
    assert isinstance(some, PartialModel)
    assert not isinstance(whole, PartialModel)
    for model in (whole, some):
        noise, x_0 = noise_and_start(source)
        made.append(solve(model, x_0, times, jump, noise, **given).tokens)
        assert not isinstance(noise, RowNoise) or noise.draws == noise_draws(source, times)
    assert whole.passes == some.passes
    return made[0], made[1], some


def noise_draws(source: Source, times: Any) -> int:
    """One draw a step, and one for x_0 where it is random."""
    steps = times if isinstance(times, int) else len(times) - 1
    return steps + (source.mask is None)


PREFIX = {"given": torch.arange(LENGTH) < 2, "given_tokens": torch.tensor([4, 5, 0, 0, 0, 0])}
OWN = {
    "given": torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) * 7 % 5 < 2,
    "given_tokens": torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % VOCAB,
}


@every_jump
@every_source
@pytest.mark.parametrize("held", [{}, PREFIX, OWN], ids=["free", "prefix", "own"])
@pytest.mark.parametrize("dials", [{}, {"temperature": 0.6, "top_p": 0.8}], ids=["plain", "shaped"])
@pytest.mark.parametrize("times", [1, 8, [0.0, 0.7, 0.7001, 1.0]])
def test_the_same_tokens(kind: Any, source: Source, held: Any, dials: Any, times: Any) -> None:
    whole, some, _ = both(source, kind(Polynomial(2.0), source), times, **held, **dials)
    assert torch.equal(whole, some)


@every_source
def test_the_same_tokens_in_chunks(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(walk.ROOM, "cpu", 5 * VOCAB)
    whole, some, model = both(source, CumulativeJump(Cosine(), source), 5)
    assert torch.equal(whole, some)
    assert max(len(places) for _, places in model.seen) > 5  # there was more than one chunk


@every_jump
@every_source
@pytest.mark.parametrize("held", [PREFIX, OWN], ids=["prefix", "own"])
def test_only_what_may_move_is_asked_for(kind: Any, source: Source, held: Any) -> None:
    """κ = t, 8 steps: a position is looked at where u < h/(1 − t) (cumulative) or 1 − e^{−h/(1 − t)} (Euler)."""
    model = both(source, kind(Polynomial(1.0), source), 8, **held)[2]
    noise, _ = noise_and_start(source)
    free = ~held["given"].expand(ROWS, LENGTH)
    for step, (x, places) in enumerate(model.seen):
        u = noise.uniform((ROWS, LENGTH, 2))[..., 0]
        share = 1 / (8 - step)
        chance = 1.0 if step == 7 else share if kind is CumulativeJump else 1 - math.exp(-share)
        wanted = free & (u < chance)
        if step == 7 and source.mask is not None:
            wanted &= x == source.mask  # the last step looks at masks alone
        assert sorted(places) == wanted.flatten().nonzero().flatten().tolist()
        assert len(places) == len(set(places))


def test_a_long_grid_looks_at_few() -> None:
    """Σ 1/(256 − k) over 256 steps is 6.1 looks a position, not 256."""
    model = both(Uniform(VOCAB), CumulativeJump(Polynomial(1.0), Uniform(VOCAB)), 256)[2]
    looks = sum(len(places) for _, places in model.seen) / (ROWS * LENGTH)
    assert looks == pytest.approx(sum(1 / k for k in range(1, 257)), rel=0.2)


@every_source
def test_others_get_all_logits(source: Source) -> None:
    """A jump that does not say what it needs, and `on_step`, see all."""

    class Louder:
        final_pass = False

        def __init__(self, schedule: Cosine, source: Source) -> None:
            self.schedule, self.source = schedule, source

        def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Any) -> Tensor:
            assert logits.shape == (ROWS, LENGTH, VOCAB)
            return CumulativeJump(self.schedule, self.source)(x_t, logits, t, h, noise)

    steps = list[Step]()
    wanted = both(source, CumulativeJump(Cosine(), source), 4, **PREFIX)[1]
    for jump, watch in ((Louder(Cosine(), source), None), (CumulativeJump(Cosine(), source), steps.append)):
        model, (noise, x_0) = Asked(source), noise_and_start(source)
        assert torch.equal(solve(model, x_0, 4, jump, noise, on_step=watch, **PREFIX).tokens, wanted)
        assert model.seen == []
    assert [step.logits.shape for step in steps] == [(ROWS, LENGTH, VOCAB)] * 4


@every_source
def test_a_third_jump_asks_for_what_it_needs(source: Source) -> None:
    """Any jump that decides position by position: here one that leaves half as often."""

    class Half(CumulativeJump):
        def chance(self, t: Tensor, s: Tensor, h: Tensor, p_other: Tensor) -> Tensor:
            return super().chance(t, s, h, p_other) / 2

    whole, some, model = both(source, Half(Polynomial(1.0), source), 8)
    assert torch.equal(whole, some)
    assert len(model.seen[0][1]) < ROWS * LENGTH / 8
    _, _, often = both(source, CumulativeJump(Polynomial(1.0), source), 8)
    assert len(model.seen[0][1]) < len(often.seen[0][1])


@every_source
def test_a_last_pass_is_made_and_counted(source: Source) -> None:
    """A jump that finishes the text by a pass of its own, at t = 1: the likeliest token everywhere."""

    class Finished(CumulativeJump):
        final_pass = True

        def finish(self, x: Tensor, logits: Tensor, noise: Any) -> Tensor:
            return logits.argmax(-1)

    model, (noise, x_0), steps = Table(source), noise_and_start(source), list[Step]()
    found = solve(model, x_0, 4, Finished(Cosine(), source), noise, on_step=steps.append, **PREFIX)
    assert (found.nfe, model.passes, len(steps)) == (5, 5, 5)
    assert (steps[-1].t, steps[-1].h) == (1.0, 0.0)
    free = ~PREFIX["given"]
    assert torch.equal(found.tokens[:, free], steps[-1].logits.argmax(-1)[:, free])
    assert torch.equal(found.tokens[:, ~free], PREFIX["given_tokens"][~free].expand(ROWS, -1))


@every_source
def test_all_given(source: Source) -> None:
    """Nothing is to be written: no logits are asked for, and the passes count all the same."""
    tokens = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % VOCAB
    given = {"given": torch.ones(LENGTH, dtype=torch.bool), "given_tokens": tokens}
    whole, some, model = both(source, EulerJump(Cosine(), source), 3, **given)
    assert torch.equal(whole, tokens)
    assert torch.equal(some, tokens)
    assert [places for _, places in model.seen] == [[]] * 3


def test_logits_that_are_not_numbers() -> None:
    """Where they are looked at, they are noticed."""
    source = Mask(VOCAB)
    for value in (math.nan, math.inf):
        model, (noise, x_0) = Asked(source), noise_and_start(source)
        model.table[3, 2] = value
        with pytest.raises(UserError, match="not numbers"):
            solve(model, x_0, 6, CumulativeJump(Cosine(), source), noise)


@every_jump
@every_source
@pytest.mark.parametrize("dials", [{}, {"temperature": 0.5, "top_p": 0.8}], ids=["plain", "shaped"])
def test_a_bias_is_added_before_temperature_and_top_p(kind: Any, source: Source, dials: Any) -> None:
    bias = torch.linspace(-2, 2, VOCAB, dtype=torch.float64).roll(3)
    bias[4] = -math.inf
    inner, jump = Table(source), kind(Cosine(), source)
    noise, x_0 = noise_and_start(source)
    wanted = solve(lambda x, t, h: inner(x, t, h) + bias, x_0, 6, jump, noise, **dials).tokens
    for model in (Table(source), Asked(source)):
        noise, x_0 = noise_and_start(source)
        assert torch.equal(solve(model, x_0, 6, jump, noise, bias=bias, **dials).tokens, wanted)
    noise, x_0 = noise_and_start(source)
    assert not torch.equal(solve(Table(source), x_0, 6, jump, noise, **dials).tokens, wanted)
    if source.mask is not None:
        assert not (wanted == 4).any()  # ruled out (a uniform start may hold it, and stay)


def test_a_bias_is_added_in_float32() -> None:
    """0.1 beside a bf16 logit of 100, whose steps are 0.5, decides between equals."""
    source, bias = Mask(3), torch.tensor([0.0, 0.1, 0.0], dtype=torch.float64)
    noise, x_0 = noise_and_start(source)
    steps = list[Step]()
    logits = torch.full((ROWS, LENGTH, 3), 100.0, dtype=torch.bfloat16)
    jump = CumulativeJump(Polynomial(1.0), source)
    made = solve(lambda *_: logits, x_0, 2, jump, noise, temperature=0.0, bias=bias, on_step=steps.append)
    assert (made.tokens == 1).all()
    assert steps[0].logits.dtype == torch.float32


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        (torch.zeros(VOCAB + 1), "one number for each of the 7 tokens"),
        (torch.zeros(1, VOCAB), "one number for each"),
        (torch.full((VOCAB,), math.nan), "NaN"),
        (torch.full((VOCAB,), math.inf), "NaN or \\+inf"),
    ],
)
def test_a_bias_that_makes_no_sense(bias: Tensor, said: str) -> None:
    noise, x_0 = noise_and_start(Mask(VOCAB))
    with pytest.raises(UserError, match=said):
        solve(Table(Mask(VOCAB)), x_0, 2, EulerJump(Cosine(), Mask(VOCAB)), noise, bias=bias)


@every_jump
@every_source
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("dials", [{}, {"temperature": 0.0}, {"temperature": 1.5, "top_p": 0.8}])
def test_limits_hold_where_they_are_asked_for(kind: Any, source: Source, times: int, dials: Any) -> None:
    """Tokens of the set alone, whichever logits are asked for. Set 0 changes nothing, nor does one of all tokens."""
    allowed = torch.ones(3, VOCAB, dtype=torch.bool)
    allowed[0] = False  # set 0 is every token, whatever its row says
    allowed[2] = torch.arange(VOCAB) % 3 == 1
    sets = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 3
    whole, some, _ = both(source, kind(Polynomial(2.0), source), times, limits=Limits(sets, allowed), **dials)
    assert torch.equal(whole, some)
    assert (whole[sets == 2] % 3 == 1).all()
    free, _, _ = both(source, kind(Polynomial(2.0), source), times, limits=Limits(sets % 2, allowed), **dials)
    plain, _, _ = both(source, kind(Polynomial(2.0), source), times, **dials)
    assert torch.equal(free, plain)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            Limits(torch.zeros(LENGTH, dtype=torch.int64), torch.ones(1, VOCAB + 1, dtype=torch.bool)),
            "allowed tokens have",
        ),
        (Limits(torch.zeros(3, dtype=torch.int64), torch.ones(1, VOCAB, dtype=torch.bool)), "limits of positions"),
        (
            Limits(torch.ones(LENGTH, dtype=torch.int64), torch.tensor([[True], [False]]).expand(2, VOCAB)),
            "no token at all",
        ),
    ],
)
def test_limits_that_make_no_sense(limits: Limits, said: str) -> None:
    source = Mask(VOCAB)
    noise, x_0 = noise_and_start(source)
    with pytest.raises(UserError, match=said):
        solve(Table(source), x_0, 2, EulerJump(Polynomial(1.0), source), noise, limits=limits)


@every_source
def test_states_are_told_after_every_pass_and_ask_for_no_logits(source: Source) -> None:
    told, jump = list[tuple[int, float, Tensor]](), CumulativeJump(Cosine(), source)
    (noise, x_0), model = noise_and_start(source), Asked(source)
    made = solve(model, x_0, 4, jump, noise, on_state=lambda k, t, x: told.append((k, t, x.clone())))
    assert [(k, t) for k, t, _ in told] == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert torch.equal(told[-1][2], made.tokens)
    for (_, _, state), (seen, _) in zip(told, model.seen[1:], strict=False):
        assert torch.equal(state, seen)
    assert sum(len(places) for _, places in model.seen) < 4 * ROWS * LENGTH
