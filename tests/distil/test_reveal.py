"""Roll-outs that reveal: each position's target against a walk with plain numbers, and every divergence by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from student_parts import pick, softmax, spec_of, stirred
from torch import Tensor, nn

from tsdfm.distil.divergences import divergence_from
from tsdfm.distil.parts import States
from tsdfm.distil.reveal import REVEAL_STREAM, Reveal
from tsdfm.distil.times import Doubling
from tsdfm.engine.distributed import Processes
from tsdfm.flow import RowNoise
from tsdfm.kernels.fused import Target, fused_loss
from tsdfm.methods.sdtt import METHOD, SDTTSettings
from tsdfm.nn.velocity import VelocitySpec, as_model

ROWS, SEED = 7, 0
SPEC = spec_of("mask", vocab=5, length=8, anchor=1, step_size=False, logits="subs", schedule="cosine")
NUMBERS = torch.arange(40, 40 + ROWS)
NAMES = ("reverse", "forward", "mse", "tvd")


def states_of(spec: VelocitySpec, steps: int = 2) -> tuple[Any, States]:
    """SDTT's task and states with large steps: half of the way, or what is left of it."""
    from pathlib import Path

    given = {"tokens": Path("a"), "init_from": Path("b"), "out": Path("c")}
    settings = SDTTSettings(**given, teacher_steps=steps, start_steps=2 * steps, round=70_000)  # type: ignore[arg-type]
    task = METHOD.task(settings, spec, None, Processes())
    x_1 = (RowNoise(9, NUMBERS).uniform((ROWS, spec.length)) * spec.vocab).long()
    return task, task.states(x_1, NUMBERS, NUMBERS, torch.ones(ROWS, dtype=torch.bool))


def kappa(t: float) -> float:
    return 1.0 - math.cos(math.pi * t / 2)


def walk(net: Any, spec: VelocitySpec, states: States, steps: int) -> list[list[float]]:
    """The target of every masked position, row after row, with plain numbers; one row at a time."""
    found = []
    for row in range(ROWS):
        number, length = NUMBERS[row : row + 1], spec.length
        reveal = RowNoise(SEED, number, REVEAL_STREAM)
        tokens = RowNoise(SEED, number, draws=1)  # the first draw made x_t
        t, h = float(states.t[row]), float(states.h[row]) / steps
        x = states.x_t[row].tolist()
        law: dict[int, list[float]] = {}
        for k in range(steps):
            s = t + k * h
            told = spec.told(torch.tensor([s]), torch.tensor([h]))
            answers = net(torch.tensor([x]), *told)[0].tolist()
            last = k == steps - 1
            u, v = (noise.uniform((1, length))[0].tolist() if not last else [] for noise in (reveal, tokens))
            for i in [i for i in range(length) if x[i] == spec.vocab]:
                law[i] = softmax(answers[i])  # overwritten by the next step where it is still masked
                if not last and 1 - u[i] <= (kappa(s + h) - kappa(s)) / (1 - kappa(s)):
                    x[i] = pick(law[i], v[i])
        found += [law[i] for i in sorted(law)]
    return found


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("told", [{}, {"time": False}, {"step_size": True}])
def test_each_target_is_of_the_step_that_revealed_it(steps: int, told: dict[str, bool]) -> None:
    spec = replace(SPEC, **told)  # type: ignore[arg-type]
    net = stirred(spec, 2)
    _, states = states_of(spec, steps)
    target = Reveal(spec, steps, lambda found: divergence_from("reverse", found)).target(net, states)
    wanted = torch.tensor(walk(net, spec, states, steps), dtype=torch.float64)
    torch.testing.assert_close(target.log_p(slice(None)).exp(), wanted, rtol=1e-9, atol=1e-12)
    if steps == 1:  # it is the teacher's own law at x_t
        masked = states.x_t == spec.vocab
        own = as_model(net, spec)(states.x_t, states.t.float(), states.h.float())[masked].softmax(-1)
        torch.testing.assert_close(wanted, own, rtol=1e-9, atol=1e-12)
    else:
        one = torch.tensor(walk(net, spec, states, 1), dtype=torch.float64)
        assert (wanted.log() - one.log()).abs().max() > 0.05  # the revealed tokens are seen


def test_with_one_teacher_step_the_student_is_its_teacher() -> None:
    """Nothing is left to learn: the loss and its gradient are 0, whatever the divergence."""
    task, states = states_of(SPEC, 1)
    net = stirred(SPEC, 3)
    for name in NAMES:
        rollout = Reveal(SPEC, 1, lambda found, name=name: divergence_from(name, found))
        loss, _ = task.losses(net, states, *rollout(net, states, 0, None))
        assert loss.item() == pytest.approx(0.0, abs=1e-15)
        grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        assert all(g is None or g.abs().max() < 1e-13 for g in grads)


def test_learned_are_the_masked_positions_alone() -> None:
    """Counted over all free ones: a divergence at each [MASK], 0 elsewhere, divided by all."""
    task, states = states_of(SPEC)
    net, teacher = stirred(SPEC, 3), stirred(SPEC, 4)
    rollout = Reveal(SPEC, 2, lambda found: divergence_from("forward", found))
    loss, small = task.losses(net, states, *rollout(teacher, states, 0, None))
    log_p = rollout.target(teacher, states).log_p(slice(None))
    masked = states.x_t == SPEC.vocab
    log_q = net(states.x_t, states.t.float())[masked].log_softmax(-1)
    by_hand = (log_p.exp() * (log_p - log_q)).sum() / (ROWS * (SPEC.length - 1))
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-12)
    assert small.item() == 0.0
    assert not masked[:, 0].any()
    assert 0 < masked.sum() < ROWS * 7


def test_some_rows_large() -> None:
    """Where a part of the rows takes a large step, `learned` keeps the two parts apart."""
    task, _ = states_of(SPEC)
    x_1 = (RowNoise(9, NUMBERS).uniform((ROWS, SPEC.length)) * SPEC.vocab).long()
    large = NUMBERS % 2 == 0
    found = task.states(x_1, NUMBERS, NUMBERS, large)
    masked = found.x_t == SPEC.vocab
    place = torch.arange(found.x_t.numel()).view_as(found.x_t)
    assert found.large == int(large.sum())
    assert torch.equal(found.learned(place), place[masked])
    assert torch.equal(found.learned(place[: found.large]), place[: found.large][masked[: found.large]])
    assert torch.equal(found.learned_small(place[found.large :]), place[found.large :][masked[found.large :]])
    assert len(found.learned(place[: found.large])) == found.cut
    assert torch.equal(found.x_t[~masked], found.x_1[~masked])
    assert torch.equal(found.numbers, torch.cat([NUMBERS[large], NUMBERS[~large]]))


def by_hand(name: str, logs: bool, p: list[float], q: list[float]) -> float:
    if name == "reverse":
        return sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    if name == "forward":
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    pairs = [(math.log(a), math.log(b)) if logs else (a, b) for a, b in zip(p, q, strict=True)]
    total = sum((a - b) ** 2 if name == "mse" else abs(a - b) for a, b in pairs)
    return total / len(p) if logs else total if name == "mse" else total / 2


@pytest.mark.parametrize(("name", "logs"), [*((name, False) for name in NAMES), ("mse", True), ("tvd", True)])
def test_divergences_and_their_gradients(name: Any, logs: bool) -> None:
    """In float64, by numbers: the loss by its sum, the gradient by differences."""
    made = torch.Generator().manual_seed(1)
    hidden, theirs = (torch.randn(3, 4, generator=made, dtype=torch.float64) for _ in range(2))
    head = nn.Linear(4, 5).double()
    weight = torch.randn(5, 4, generator=made, dtype=torch.float64)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    objective = divergence_from(name, Target([theirs], (1.0,), weight, None), logs=logs)

    def value(x: Tensor) -> float:
        laws = [(softmax((weight @ a).tolist()), softmax(head(b).tolist())) for a, b in zip(theirs, x, strict=True)]
        return sum(float(s) * by_hand(name, logs, p, q) for s, (p, q) in zip(scale, laws, strict=True))

    x = hidden.clone().requires_grad_()
    loss = fused_loss(x, head, objective, scale)
    assert loss.item() == pytest.approx(value(hidden), rel=1e-12)
    (grad,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        for n in range(3):
            for d in range(4):
                step = torch.zeros_like(hidden)
                step[n, d] = 1e-6
                slope = (value(hidden + step) - value(hidden - step)) / 2e-6
                assert grad[n, d].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_rounds_double_the_step() -> None:
    times, numbers = Doubling(2 / 64, 10), torch.arange(1000)
    assert times.smallest == 2 / 64
    assert bool(times.large(numbers, 0).all())
    for step, h in ((0, 1 / 32), (9, 1 / 32), (10, 1 / 16), (29, 1 / 8), (45, 1 / 2), (50, 1.0)):
        t, found = times.draw(times.large(numbers, step), RowNoise(3, numbers), step)
        assert torch.equal(found, torch.minimum(1 - t, torch.tensor(h, dtype=torch.float64)))
        assert bool((t + found <= 1).all())
        even = torch.arange(1000, dtype=torch.float64) / 1000
        assert float((t.sort().values - even).abs().max()) < 3e-3  # evenly over [0, 1)
