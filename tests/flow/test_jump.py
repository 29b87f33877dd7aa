"""Jumps: the probability of leaving, the edges, the last step, compile, and rows that do not know each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.errors import UserError
from tsdfm.flow.draw import draw_other
from tsdfm.flow.jump import JUMPS as NAMED
from tsdfm.flow.jump import CumulativeJump, EulerJump, Jump, LeaveJump, jump_from
from tsdfm.flow.late import LateJump
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.source import Mask, Source, Uniform

JUMPS = [EulerJump, CumulativeJump]
SOURCES = [Uniform, Mask]
SCHEDULES = [Polynomial(0.5), Polynomial(1.0), Polynomial(2.5), Cosine()]
f64 = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=f64)


def state(source: Source, rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, source.tokens, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_leaving_probabilities_as_written(schedule: Schedule) -> None:
    source = Uniform(4)
    t, h = torch.tensor([0.1, 0.4, 0.8], dtype=f64), torch.tensor([0.05, 0.3, 0.1], dtype=f64)
    x_t, p_z = torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[0.3, 0.9]] * 3, dtype=f64)
    euler = EulerJump(schedule, source).leave(x_t, 1 - p_z, t, h)
    cumulative = CumulativeJump(schedule, source).leave(x_t, 1 - p_z, t, h)
    for i in range(3):
        kappa_t, kappa_s = schedule.kappa(t[i]).item(), schedule.kappa(t[i] + h[i]).item()
        rate = schedule.derivative(t[i]).item() / (1 - kappa_t)
        for j in range(2):
            other = 1 - p_z[i, j].item()
            assert euler[i, j].item() == pytest.approx((1 - math.exp(-h[i].item() * rate)) * other, rel=1e-12)
            expected = 1 - ((1 - kappa_s) / (1 - kappa_t)) ** other
            assert cumulative[i, j].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("source", [Uniform(5), Mask(5)])
def test_no_step_no_move(kind: Any, source: Source) -> None:
    x_t, noise = state(source, 6, 30), RowNoise(0, torch.arange(6))
    for schedule in SCHEDULES:
        x = kind(schedule, source)(x_t, randn(6, 30, 5), torch.full((6,), 0.0), torch.zeros(6), noise)
        assert torch.equal(x, x_t)


@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_step_leaves_no_mask_and_touches_nothing_else(kind: Any, dtype: torch.dtype) -> None:
    source = Mask(5)
    x_t = state(source, 40, 30)
    for schedule in SCHEDULES:
        t = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=dtype)
        t[:3] = torch.tensor([0.0, 0.1, 1.0])
        x = kind(schedule, source)(x_t, randn(40, 30, 5), t, 1 - t, RowNoise(0, torch.arange(40)))
        assert (x < 5).all()
        revealed = x_t != source.mask
        assert torch.equal(x[revealed], x_t[revealed])


@pytest.mark.parametrize("kind", JUMPS)
def test_the_last_step_follows_p_outright(kind: Any) -> None:
    """Uniform source: x_1 ~ p whatever was there, with 1 − p(z) of the positions leaving z."""
    logits = randn(1, 1, 4).expand(1, 40000, 4)
    p = logits[0, 0].softmax(-1)
    for z in range(4):
        x_t = torch.full((1, 40000), z)
        x = kind(Cosine(), Uniform(4))(
            x_t, logits, torch.tensor([0.7]), torch.tensor([0.3]), RowNoise(z, torch.arange(1))
        )
        share = torch.bincount(x[0], minlength=4) / 40000
        assert (share - p).abs().max() < 5 * 0.5 / 200


@pytest.mark.parametrize("kind", JUMPS)
def test_rows_have_their_own_time_and_step(kind: Any) -> None:
    source = Uniform(3)
    jump = kind(Polynomial(2.0), source)
    x_t, logits = state(source, 3, 20), randn(3, 20, 3)
    t, h = torch.tensor([0.0, 0.5, 0.75]), torch.tensor([0.5, 0.25, 0.25])
    whole = jump(x_t, logits, t, h, RowNoise(7, torch.arange(3)))
    for i in range(3):
        one = slice(i, i + 1)
        assert torch.equal(whole[one], jump(x_t[one], logits[one], t[one], h[one], RowNoise(7, torch.tensor([i]))))


@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("source", [Uniform(3), Mask(3)])
def test_a_certain_token_stays_and_a_certain_other_is_the_target(kind: Any, source: Source) -> None:
    logits = torch.full((1, 200, 3), -math.inf)
    logits[..., 1] = 0.0
    jump = kind(Polynomial(1.0), source)
    at = {"t": torch.tensor([0.5]), "h": torch.tensor([0.4])}
    ones = torch.ones(1, 200, dtype=torch.int64)
    assert torch.equal(jump(ones, logits, noise=RowNoise(0, torch.arange(1)), **at), ones)  # p(x_t) = 1
    moved = jump(torch.zeros_like(ones), logits, noise=RowNoise(0, torch.arange(1)), **at)
    assert set(moved.flatten().tolist()) == {0, 1}


@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("source_kind", SOURCES)
def test_one_token_vocabulary_and_rows_of_minus_infinity(kind: Any, source_kind: Any) -> None:
    for vocab in (1, 3):
        source = source_kind(vocab)
        x, noise = source.draw((4, 50), RowNoise(1, torch.arange(4)), torch.device("cpu")), RowNoise(0, torch.arange(4))
        empty = torch.full((4, 50, vocab), -math.inf)
        for k in range(4):
            x = kind(Polynomial(1.0), source)(x, empty, torch.full((4,), k / 4), torch.full((4,), 0.25), noise)
        counts = torch.bincount(x.flatten(), minlength=vocab)
        assert counts.shape == (vocab,)  # no [MASK]
        assert (counts - 200 / vocab).abs().max() < 5 * math.sqrt(200 / vocab)


def test_euler_and_cumulative_agree_for_small_steps() -> None:
    source, x_t, p_other = Uniform(3), torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[0.4]], dtype=f64)
    for schedule in SCHEDULES:
        gaps = []
        for h in (1e-2, 1e-3):
            args = (x_t, p_other, torch.tensor([0.3], dtype=f64), torch.tensor([h], dtype=f64))
            gaps.append(
                abs((EulerJump(schedule, source).leave(*args) - CumulativeJump(schedule, source).leave(*args)).item())
            )
        assert gaps[1] < gaps[0] / 80  # second order


def test_keep_revealed_freezes_what_has_left_the_mask() -> None:
    source = Mask(4)
    x_t, logits, t, h = state(source, 8, 100), randn(8, 100, 4), torch.full((8,), 0.5), torch.full((8,), 0.25)
    revealed = x_t != source.mask
    free = CumulativeJump(Polynomial(1.0), source)(x_t, logits, t, h, RowNoise(0, torch.arange(8)))
    kept = CumulativeJump(Polynomial(1.0), source, keep_revealed=True)(x_t, logits, t, h, RowNoise(0, torch.arange(8)))
    assert (free != x_t)[revealed].any()
    assert not (kept != x_t)[revealed].any()
    assert torch.equal(kept[~revealed], free[~revealed])


@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("source", [Uniform(30), Mask(30)])
def test_compiles_without_a_break(kind: Any, source: Source) -> None:
    jump = kind(Polynomial(2.0), source)
    x_t, logits = state(source, 4, 6), randn(4, 6, 30).float()
    t, h = torch.tensor([0.0, 0.25, 0.5, 0.75]), torch.full((4,), 0.25)
    u = torch.rand(4, 6, 2, generator=torch.Generator().manual_seed(2), dtype=f64)
    move = torch.compile(jump.move, fullgraph=True, backend="aot_eager")
    assert torch.equal(move(x_t, logits, t, h, u), jump.move(x_t, logits, t, h, u))


def test_a_model_with_the_wrong_vocabulary_is_refused() -> None:
    jump = EulerJump(Polynomial(1.0), Mask(5))
    with pytest.raises(UserError, match="6 columns, the vocabulary has 5"):
        jump(
            torch.zeros(1, 2, dtype=torch.int64),
            randn(1, 2, 6),
            torch.zeros(1),
            torch.ones(1),
            RowNoise(0, torch.arange(1)),
        )


def test_by_name() -> None:
    for name, kind in (("euler", EulerJump), ("cumulative", CumulativeJump)):
        jump = jump_from(name, Cosine(), Mask(3))
        assert isinstance(jump, kind)
        assert isinstance(jump, Jump)
    kept = jump_from("ancestral", Cosine(), Mask(3))
    assert isinstance(kept, CumulativeJump)
    assert kept.keep_revealed
    with pytest.raises(UserError, match=r"known: auto, euler, cumulative, ancestral, euler-redraw, .*remdm-cap"):
        jump_from("heun", Cosine(), Mask(3))
    for name in ("ancestral", "euler-redraw"):
        with pytest.raises(UserError, match="mask source"):
            jump_from(name, Cosine(), Uniform(3))


def test_the_last_step_both_ways() -> None:
    """Of the mask source: what is revealed stays, or everything is drawn anew."""
    x_t = torch.tensor([[0, 3, 1]]).expand(400, -1)
    logits = torch.log(torch.tensor([0.2, 0.3, 0.5])).expand(400, 3, 3)
    t, h = torch.full((400,), 0.75), torch.full((400,), 0.25)
    kept, redrawn = (
        jump_from(name, Polynomial(1.0), Mask(3))(x_t, logits, t, h, RowNoise(0, torch.arange(400)))
        for name in ("euler", "euler-redraw")
    )
    assert torch.equal(kept[:, [0, 2]], x_t[:, [0, 2]])
    for position in range(3):
        shares = torch.bincount(redrawn[:, position], minlength=4) / 400
        assert shares.tolist() == pytest.approx([0.2, 0.3, 0.5, 0.0], abs=0.08)


@given(
    kind=st.sampled_from(JUMPS),
    source_kind=st.sampled_from(SOURCES),
    schedule=st.one_of(st.just(Cosine()), st.floats(0.3, 5.0).map(Polynomial)),
    rows=st.integers(1, 4),
    length=st.integers(1, 5),
    vocab=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_any_jump(
    kind: Any, source_kind: Any, schedule: Schedule, rows: int, length: int, vocab: int, seed: int
) -> None:
    """Any schedule, source and shape: tokens stay in range, probabilities in [0, 1], [MASK] never comes back."""
    source = source_kind(vocab)
    x_t, logits = state(source, rows, length, seed), 5 * randn(rows, length, vocab, seed=seed)
    times = torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed), dtype=f64).sort(-1).values
    t, h = times[:, 0], times[:, 1] - times[:, 0]
    jump = kind(schedule, source)
    leave = jump.leave(x_t, draw_other(logits, x_t, torch.zeros(rows, length)).p_other, t, h)
    assert ((leave >= 0) & (leave <= 1)).all()
    x = jump(x_t, logits, t, h, RowNoise(seed, torch.arange(rows)))
    assert x.shape == x_t.shape
    assert ((x < vocab) | (x == x_t)).all()
    final = jump(x, logits, t, 1 - t, RowNoise(seed + 1, torch.arange(rows)))
    assert (final < vocab).all()


@pytest.mark.parametrize(
    "jump",
    [
        *(made(Polynomial(1.0), Mask(5)) for made in NAMED.values()),
        *(NAMED[name](Polynomial(1.0), Uniform(5)) for name in ("euler", "cumulative")),
        LateJump(Polynomial(2.0), Uniform(5), power=2.0),
    ],
)
@pytest.mark.parametrize("t", [0.0, 0.35, 0.75])
def test_a_steps_probabilities(jump: LeaveJump, t: float) -> None:
    """log_step adds up to 1 over where a step may lead, gives what is drawn, and has the gradients of its formula."""
    source = jump.source
    rows, h = 3, torch.full((3,), 0.25, dtype=f64)
    x_t = state(source, rows, 4)
    when = torch.full((rows,), t, dtype=f64)
    logits = randn(rows, 4, 5).requires_grad_()

    def logs(logits: torch.Tensor) -> torch.Tensor:
        said = logits.log_softmax(-1)
        own = said.gather(-1, x_t.clamp(max=4)[..., None])[..., 0]
        ways = [torch.full_like(x_t, v) for v in range(source.tokens)]
        found = [jump.log_step(x_t, y, own, said[..., min(v, 4)], when, h) for v, y in enumerate(ways)]
        return torch.stack(found, -1)

    chances = logs(logits).exp()
    if source.mask is not None:  # nothing goes to [MASK], and only [MASK] stays there
        masked = x_t == source.mask
        chances = chances * torch.cat([torch.ones_like(chances[..., :5]), masked[..., None].double()], -1)
    torch.testing.assert_close(chances.sum(-1), torch.ones(rows, 4, dtype=f64), rtol=0, atol=1e-9)
    many = 20000
    wide = jump(
        x_t.repeat(many, 1), logits.detach().repeat(many, 1, 1), when.repeat(many), h.repeat(many),
        RowNoise(0, torch.arange(rows * many)),
    ).view(many, rows, 4)  # fmt: skip
    seen = torch.stack([(wide == v).double().mean(0) for v in range(source.tokens)], -1)
    assert (seen - chances).abs().max() < 5 * 0.5 / many**0.5
    assert torch.autograd.gradcheck(lambda l: logs(l)[..., :5], (logits,))
