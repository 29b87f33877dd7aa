"""Closed-form Markov chains: every jump against its transition matrix, and the solver's law against the data.

On a vocabulary of 2 to 5 tokens and sequences of 1 to 3 positions, a solver is a Markov chain on |states|^L states
whose kernel can be written down. `kernel` does so from the definitions alone, in numpy, sharing no code with the jumps.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from posterior import Posterior

from tsdfm.flow.jump import CumulativeJump, EulerJump
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.solver import Step, grid, solve
from tsdfm.flow.source import Mask, Source, Uniform

Array = npt.NDArray[np.float64]
CPU = torch.device("cpu")
every_kind = pytest.mark.parametrize("kind", [EulerJump, CumulativeJump])


def kappa(schedule: Schedule, t: float) -> tuple[float, float]:
    """κ and κ̇, written out here again."""
    if isinstance(schedule, Polynomial):
        return t**schedule.exponent, schedule.exponent * t ** (schedule.exponent - 1)
    return 1 - math.cos(math.pi * t / 2), math.pi / 2 * math.sin(math.pi * t / 2)


def transition(
    kind: Any, schedule: Schedule, source: Source, p: Array, z: int, t: float, h: float, keep: bool = False
) -> Array:
    """P(next token | token z) of one position, over all `source.tokens` tokens; p [V] is the model's answer."""
    out = np.zeros(source.tokens)
    others = np.append(p, 0.0)[: source.tokens].copy()
    p_z = others[z]
    others[z] = 0.0
    kappa_t, slope = kappa(schedule, t)
    last = t + h == 1.0
    if source.mask is not None and z != source.mask and (last or keep):
        out[z] = 1.0
        return out
    if last:
        out += others  # x_1 ~ p outright
    elif kind is EulerJump:
        out += others * (1 - math.exp(-h * slope / (1 - kappa_t)))  # x̂_1 ~ p, and the clock rings
    elif p_z < 1:
        survival = (1 - kappa(schedule, t + h)[0]) / (1 - kappa_t)
        out += others / (1 - p_z) * (1 - survival ** (1 - p_z))
    out[z] = 1 - out.sum()
    return out


def states(source: Source, length: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(source.tokens), repeat=length))


def kernel(kind: Any, model: Posterior, length: int, t: float, h: float, keep: bool = False) -> Array:
    """The solver's step as a matrix on whole sequences: positions jump independently, given the state."""
    source, every = model.source, states(model.source, length)
    x = torch.tensor(every)
    p = model(x, torch.full((len(every),), t, dtype=torch.float64)).exp().numpy()
    empty = p.sum(-1, keepdims=True) == 0
    p = np.where(empty, 1 / source.vocab, p)  # an impossible state counts as uniform
    out = np.zeros((len(every), len(every)))
    for i, state in enumerate(every):
        out[i] = product(
            [transition(kind, model.schedule, source, p[i, j], z, t, h, keep) for j, z in enumerate(state)]
        )
    return out


def product(rows: list[Array]) -> Array:
    """The joint law of independent positions, in the order of `states`."""
    out = rows[0]
    for row in rows[1:]:
        out = np.multiply.outer(out, row).ravel()
    return out


def law(kind: Any, model: Posterior, length: int, times: tuple[float, ...], keep: bool = False) -> Array:
    """The exact law of the solver's output over all states."""
    every = states(model.source, length)
    start = model.source.probability(torch.tensor(every)).prod(-1).numpy()
    for t, s in itertools.pairwise(times):
        start = start @ kernel(kind, model, length, t, s - t, keep)
    return start


def data_law(model: Posterior, length: int) -> Array:
    every = states(model.source, length)
    out = np.zeros(len(every))
    for row, weight in zip(model.data.tolist(), model.weights.tolist(), strict=True):
        out[every.index(tuple(row))] += weight
    return out


def text(source: Source, schedule: Schedule, length: int, seed: int = 0, full: bool = True) -> Posterior:
    """A correlated data law: random weights on all sequences, or on a few of them."""
    made = torch.Generator().manual_seed(seed)
    data = torch.tensor(list(itertools.product(range(source.vocab), repeat=length)))
    if not full:
        data = data[:: source.vocab + 1]  # all positions equal: as correlated as can be
    weights = torch.rand(len(data), generator=made, dtype=torch.float64) ** 2 + 0.02
    return Posterior(data, weights / weights.sum(), schedule, source)


def independent(model: Posterior, length: int) -> Array:
    """The law with the data's marginals and independent positions."""
    marginals = []
    for j in range(length):
        marginals.append(np.zeros(model.source.tokens))
        np.add.at(marginals[-1], model.data[:, j].numpy(), model.weights.numpy())
    return product(marginals)


def tv(a: Array, b: Array) -> float:
    return float(np.abs(a - b).sum() / 2)


def assert_counts_follow(counts: Array, p: Array) -> None:
    """χ² at 4.5 standard deviations, cells of expectation below 5 put together; impossible cells are empty."""
    assert counts[p < 1e-15].sum() == 0
    expected = p * counts.sum()
    small = expected < 5
    cells = [(counts[~small], expected[~small])]
    if expected[small].sum() > 0:
        cells.append((counts[small].sum(keepdims=True), expected[small].sum(keepdims=True)))
    seen, wanted = (np.concatenate(part) for part in zip(*cells, strict=True))
    value = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(seen) - 1
    # Wilson and Hilferty: (χ²/k)^(1/3) is almost normal
    if freedom > 0:
        score = ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
        assert score < 4.5, (score, seen, wanted)


STEPS = [(0.0, 0.25), (0.3, 0.4), (0.875, 0.0625), (0.25, 0.75), (0.0, 1.0)]


@every_kind
@pytest.mark.parametrize("source", [Uniform(2), Uniform(5), Mask(2), Mask(4)], ids=str)
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
def test_empirical_transitions_are_the_analytic_ones(kind: Any, source: Source, schedule: Schedule) -> None:
    draws = 20000
    logits = 1.5 * torch.randn(source.vocab, generator=torch.Generator().manual_seed(source.vocab), dtype=torch.float64)
    p = logits.softmax(-1).numpy()
    x_t = torch.arange(source.tokens)[:, None].expand(source.tokens, draws)
    rows = source.tokens
    for case, (t, h) in enumerate(STEPS):
        noise = RowNoise(case, torch.arange(rows), stream=source.tokens)
        times = torch.full((rows,), t, dtype=torch.float64), torch.full((rows,), h, dtype=torch.float64)
        x = kind(schedule, source)(x_t, logits.expand(rows, draws, -1), *times, noise)
        for z in range(rows):
            counts = torch.bincount(x[z], minlength=source.tokens).double().numpy()
            assert_counts_follow(counts, transition(kind, schedule, source, p, z, t, h))


@every_kind
@pytest.mark.parametrize("source", [Uniform(3), Mask(3)], ids=str)
def test_positions_jump_independently_given_the_state(kind: Any, source: Source) -> None:
    """The whole-sequence kernel of two positions, sampled from every state at once."""
    model = text(source, Polynomial(1.0), 2)
    every, draws, t, h = states(source, 2), 6000, 0.4, 0.3
    x_t = torch.tensor(every).repeat_interleave(draws, 0)
    rows = len(x_t)
    times = torch.full((rows,), t, dtype=torch.float64), torch.full((rows,), h, dtype=torch.float64)
    x = kind(model.schedule, source)(x_t, model(x_t, times[0]), *times, RowNoise(0, torch.arange(rows)))
    index = (x[:, 0] * source.tokens + x[:, 1]).view(len(every), draws)
    exact = kernel(kind, model, 2, t, h)
    for i in range(len(every)):
        assert_counts_follow(torch.bincount(index[i], minlength=len(every)).double().numpy(), exact[i])


@every_kind
@pytest.mark.parametrize("source", [Uniform(3), Mask(3)], ids=str)
@pytest.mark.parametrize("schedule", [Polynomial(2.0), Cosine()], ids=str)
def test_sampled_solutions_follow_the_exact_law(kind: Any, source: Source, schedule: Schedule) -> None:
    model, rows = text(source, schedule, 2), 20000
    noise = RowNoise(1, torch.arange(rows))
    x_0 = source.draw((rows, 2), noise, CPU)
    made = solve(model, x_0, 4, kind(schedule, source), noise, time_dtype=torch.float64).tokens
    counts = torch.bincount(made[:, 0] * source.tokens + made[:, 1], minlength=source.tokens**2).double().numpy()
    assert_counts_follow(counts, law(kind, model, 2, grid(4)))


@every_kind
@pytest.mark.parametrize("source", [Uniform(3), Mask(3)], ids=str)
def test_one_step_makes_independent_positions(kind: Any, source: Source) -> None:
    model = text(source, Cosine(), 2)
    assert np.allclose(law(kind, model, 2, grid(1)), independent(model, 2), atol=1e-14)


@every_kind
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_with_masks_a_single_position_is_exact_at_any_step_count(kind: Any, schedule: Schedule, steps: int) -> None:
    model = text(Mask(4), schedule, 1)
    assert np.allclose(law(kind, model, 1, grid(steps)), data_law(model, 1), atol=1e-14)


def arrivals(kind: Any, schedule: Schedule, times: tuple[float, ...]) -> list[float]:
    """The probability that a masked position is revealed in each of the steps."""
    left, out = 1.0, []
    for t, s in itertools.pairwise(times):
        kappa_t, slope = kappa(schedule, t)
        stay = (
            math.exp(-(s - t) * slope / (1 - kappa_t))
            if kind is EulerJump
            else (1 - kappa(schedule, s)[0]) / (1 - kappa_t)
        )
        leave = 1.0 if s == 1.0 else 1.0 - stay
        out.append(left * leave)
        left *= 1.0 - leave
    return out


@every_kind
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("full", [True, False], ids=["all", "few"])
@pytest.mark.parametrize("times", [grid(2), grid(7), (0.0, 0.1, 0.7, 0.8, 1.0)], ids=len)
def test_with_masks_two_positions_err_only_when_revealed_together(
    kind: Any, schedule: Schedule, full: bool, times: tuple[float, ...]
) -> None:
    """In closed form: (1 − c)·data + c·(independent positions), c the chance that both come in one step.

    For equal linear steps and the cumulative jump c = 1/steps: first order, and the constant is known too.
    """
    model = text(Mask(3), schedule, 2, full=full)
    c = sum(a * a for a in arrivals(kind, schedule, times))
    expected = (1 - c) * data_law(model, 2) + c * independent(model, 2)
    assert np.allclose(law(kind, model, 2, times, keep=True), expected, atol=1e-13)
    if kind is CumulativeJump and schedule == Polynomial(1.0) and times == grid(7):
        assert c == pytest.approx(1 / 7)


@every_kind
def test_with_masks_three_positions_converge_at_first_order(kind: Any) -> None:
    model = text(Mask(2), Polynomial(1.0), 3)
    counts = [16, 32, 64]
    errors = [tv(law(kind, model, 3, grid(n), keep=True), data_law(model, 3)) for n in counts]
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert 0.95 < order < 1.1, (order, errors)


@every_kind
@pytest.mark.parametrize("vocab", [2, 4])
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
def test_with_random_tokens_a_single_position_errs_by_h_log_h(kind: Any, vocab: int, schedule: Schedule) -> None:
    """The order with the uniform source is h·log(1/h), and its constant is known.

    The k-th step from the end has hλ ≈ 1/k, which is not small. There 1 − p(z) ≈ kh·κ̇(1)·(1 − π_z)/(V·π_z) falls
    to zero  linearly. Euler's 1 − e^{−1/k} misses a share 1/(2k) of the flow; the cumulative jump, whose log
    k/(k−1) integrates the  rate but holds p(z) still, adds as much. Summed over k, state y is wrong by
    ±h·log(1/h)·κ̇(1)·(1 − V·π_y)/(2V) + O(h).
    """
    model = text(Uniform(vocab), schedule, 1)
    target = data_law(model, 1)
    scaled = [n * (law(kind, model, 1, grid(n)) - target) for n in (512, 1024)]
    sign = 1 if kind is EulerJump else -1
    expected = sign * math.log(2) * kappa(schedule, 1.0)[1] * (1 - vocab * target) / (2 * vocab)
    assert np.allclose(scaled[1] - scaled[0], expected, atol=0.12 * np.abs(expected).max())


@every_kind
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
@pytest.mark.parametrize("full", [True, False], ids=["all", "few"])
def test_with_random_tokens_two_positions_converge_at_the_same_order(kind: Any, schedule: Schedule, full: bool) -> None:
    """steps × error is a straight line in log(steps): each doubling adds the same vector."""
    model = text(Uniform(2), schedule, 2, full=full)
    errors = [law(kind, model, 2, grid(n)) - data_law(model, 2) for n in (64, 128, 256, 512)]
    scaled = [n * e for n, e in zip((64, 128, 256, 512), errors, strict=True)]
    first, second, third = (b - a for a, b in itertools.pairwise(scaled))
    assert np.abs(third - second).max() < 0.15 * np.abs(third).max()
    assert np.abs(second - first).max() < 0.25 * np.abs(second).max()
    assert np.abs(errors[-1]).max() < 0.008


def test_plain_euler_is_not_ancestral() -> None:
    """Fact 3: of 8 linear steps, Euler leaves 17.9 % masked for the last, the ancestral (cumulative) jump 12.5 %."""
    source, rows = Mask(3), 400
    for kind, expected in ((EulerJump, math.exp(-sum(1 / k for k in range(2, 9)))), (CumulativeJump, 1 / 8)):
        assert expected == pytest.approx({EulerJump: 0.179, CumulativeJump: 0.125}[kind], abs=6e-4)
        assert arrivals(kind, Polynomial(1.0), grid(8))[-1] == pytest.approx(expected, rel=1e-12)
        before = torch.zeros(())

        def watch(step: Step) -> None:
            nonlocal before
            before = step.before

        noise = RowNoise(0, torch.arange(rows))
        x_0 = source.draw((rows, 100), noise, CPU)
        solve(lambda x, t, h: torch.zeros(*x.shape, 3), x_0, 8, kind(Polynomial(1.0), source), noise, on_step=watch)
        share = (before == source.mask).double().mean().item()
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected / (rows * 100)))


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
def test_the_cumulative_jump_with_masks_is_mdlms_ancestral_step(schedule: Schedule) -> None:
    """Fact 2: P(y) = p_y·(α_s − α_t)/(1 − α_t), P([MASK]) = (1 − α_s)/(1 − α_t), revealed tokens stay; α = κ."""
    source, p = Mask(3), np.array([0.2, 0.5, 0.3])
    jump = CumulativeJump(schedule, source, keep_revealed=True)
    for t, h in ((0.0, 0.125), (0.4, 0.3), (0.5, 0.5)):
        alpha_t, alpha_s = kappa(schedule, t)[0], kappa(schedule, t + h)[0]
        ancestral = np.append(p * (alpha_s - alpha_t) / (1 - alpha_t), (1 - alpha_s) / (1 - alpha_t))
        x_t = torch.tensor([[0, 1, 2, 3]])
        p_other = torch.tensor([[0.8, 0.5, 0.7, 1.0]], dtype=torch.float64)
        times = torch.tensor([t], dtype=torch.float64), torch.tensor([h], dtype=torch.float64)
        leave = jump.leave(x_t, p_other, *times)
        assert leave[0, :3].tolist() == [0.0, 0.0, 0.0]
        assert leave[0, 3].item() == pytest.approx(1 - ancestral[3], rel=1e-12)
        assert np.allclose(transition(CumulativeJump, schedule, source, p, 3, t, h), ancestral, atol=1e-12)
        many = torch.full((1, 40000), 3)
        logits = torch.tensor(np.log(p)).expand(1, 40000, 3)
        x = jump(many, logits, *times, RowNoise(2, torch.arange(1)))
        assert_counts_follow(torch.bincount(x[0], minlength=4).double().numpy(), np.maximum(ancestral, 0))
