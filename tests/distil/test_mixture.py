"""A mixture of product laws: its control variate has no mean, its gradient is exact, M = 1 is plain distillation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from student_parts import spec_of, stirred
from torch import Tensor, nn

from tsdfm.distil.floor import FromData
from tsdfm.distil.mixture import Anywhere, Goal, MixtureTask, OneStep
from tsdfm.distil.parts import Parts, States
from tsdfm.distil.start import LATENT, start_from
from tsdfm.distil.teachers import Average
from tsdfm.engine.distributed import Processes
from tsdfm.engine.learner import Learner
from tsdfm.engine.task import Context
from tsdfm.flow import RowNoise, solve
from tsdfm.flow.logits import posterior_from_others
from tsdfm.methods.di4c import Di4CLoop, Di4COptim, Di4CSettings
from tsdfm.nn.ddit import LATENT_SCALE
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.samples.quick import Pass
from tsdfm.tokens.loader import Batch, HostBatch

WORLD = Processes(device=torch.device("cpu"))


KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "mask": {"source": "mask", "logits": "subs", "time": False},
    "others": {"logits": "others", "clock": "sigma"},
}


def task_of(kind: str, mixture: int = 3, data: float = 0.2, **sizes: int) -> tuple[MixtureTask, VelocitySpec]:
    """A task of stirred float64 networks."""
    plain = spec_of(**{"length": 4, "vocab": 5, **sizes}, step_size=False, **KINDS[kind])
    spec = replace(plain, latent=True)
    velocity = Velocity(plain, stirred(plain, 1), plain.flow_source(), plain.flow_schedule())
    settings = Di4CSettings(tokens=Path("a"), init_from=Path("b"), out=Path("c"))
    parts = Parts(Anywhere(0.25), Average(), OneStep(spec, velocity, 0), FromData(spec))
    task = MixtureTask(settings, spec, None, parts, None, mixture=mixture, data=data)
    task.model = stirred(spec, 2)
    task.bind(Context(ema=stirred(spec, 3).eval(), world=WORLD))
    return task, spec


def rows_of(task: MixtureTask, spec: VelocitySpec, count: int = 4, first: int = 0) -> States:
    numbers = torch.arange(first, first + count)
    x_1 = (RowNoise(1, numbers).uniform((count, spec.length)) * spec.vocab).long()
    return task.states(x_1, numbers, numbers, task.times.large(numbers, 0))


def whole_loss(
    task: MixtureTask, spec: VelocitySpec, found: States, goal: Goal, law: Tensor, *, varied: bool = True
) -> Tensor:
    """The loss by whole logits [M, B, L, V] and autograd; `law` [B, L, V] is q. Not `varied`: the bare first term."""
    many, m, free = task.many(found), task.mixture, slice(spec.anchor, None)
    logits = task.model(many.x_t, *spec.told(many.t.float(), many.h.float(), many.latent))
    if spec.logits == "others":
        logits = posterior_from_others(logits, many.x_t, many.t[:, None], spec.flow_schedule(), spec.flow_source())
    logits = logits[:, free]
    log_p = logits.view(m, len(found.x_t), *logits.shape[1:]).log_softmax(-1)
    counts = torch.ones_like(found.x_t[:, free])
    if spec.source == "mask":
        counts = (found.x_t[:, free] == spec.vocab).long()

    def scores(x: Tensor) -> Tensor:
        each = log_p.gather(-1, x[:, free].expand(m, -1, -1)[..., None]).squeeze(-1)
        return (each * counts).sum(-1)

    s = scores(goal.x)
    loss = -(s.logsumexp(0) - math.log(m))
    if varied:
        loss = loss + s.mean(0) - ((law * log_p).sum(-1).mean(0) * counts).sum(-1)
    fades = task.data * torch.sigmoid(20 * (0.5 - found.t))
    loss = loss - fades * (scores(found.x_1).logsumexp(0) - math.log(m))
    return loss.sum() / counts.numel()


def law_of(spec: VelocitySpec, goal: Goal) -> Tensor:
    """q [B, L, V]: the average's law, and a single token where x is known."""
    free = slice(spec.anchor, None)
    shape = (*goal.x[:, free].shape, spec.vocab)
    known = nn.functional.one_hot(goal.x[:, free], spec.vocab).double()
    return torch.where(goal.known[:, free, None], known, goal.law.log_p(slice(None)).exp().view(shape))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient(kind: str) -> None:
    task, spec = task_of(kind)
    found = rows_of(task, spec)
    goal = task.rollout.goal(task.teacher.at(0), found)
    loss, measured = task.loss(task.model, Batch(found.x_1, torch.arange(4)), 0)
    loss.backward()
    mine = {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}
    task.model.zero_grad()
    whole_loss(task, spec, found, goal, law_of(spec, goal)).backward()
    for name, p in task.model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(mine[name], p.grad, rtol=1e-8, atol=1e-12, msg=name)
    assert mine["latent.mlp.0.weight"].abs().max() > 0
    assert measured["gain"] > 0  # stirred laws differ from λ to λ, and by Jensen the mixture is never worse


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_control_variate_has_no_mean(source: str) -> None:
    """Over every x that q can draw: the mean of loss and gradient is that of −log p of the mixture alone."""
    task, spec = task_of(source, data=0.0, vocab=3, length=3)
    found = rows_of(task, spec, 1, first=1)
    goal = task.rollout.goal(task.teacher.at(0), found)
    assert not bool(goal.known.all())
    law, free = law_of(spec, goal), spec.length - spec.anchor
    means = []
    for varied in (True, False):
        total = torch.zeros((), dtype=torch.float64)
        for x in itertools.product(range(spec.vocab), repeat=free):
            row = torch.tensor([x])
            chance = law.gather(-1, row[..., None]).prod()
            other = replace(goal, x=torch.cat([goal.x[:, : spec.anchor], row], 1))
            total = total + chance * whole_loss(task, spec, found, other, law, varied=varied)
        task.model.zero_grad()
        total.backward()
        means.append((total.detach(), [p.grad.clone() for p in task.model.parameters() if p.grad is not None]))
    torch.testing.assert_close(means[0][0], means[1][0], rtol=1e-10, atol=1e-12)
    for a, b in zip(means[0][1], means[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-11)


def test_a_mixture_of_one_is_the_plain_distillation() -> None:
    task, spec = task_of("mask", mixture=1, data=0.0)
    found = rows_of(task, spec)
    alike = replace(found, latent=task.many(found).latent)
    plain, _ = task.losses(task.model, alike, *task.rollout(task.teacher.at(0), found, 0, None))
    loss, measured = task.loss(task.model, Batch(found.x_1, torch.arange(4)), 0)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)
    assert measured["gain"].item() == 0.0


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_goal(source: str) -> None:
    """What the teacher's step told stays, the rest is drawn; a step that ends at 1 tells everything."""
    task, spec = task_of(source)
    found = rows_of(task, spec, 40)
    assert bool(((found.t + found.h <= 1.0) & (found.h <= 0.25)).all())
    goal = task.rollout.goal(task.teacher.at(0), found)
    last = found.t + found.h >= 1.0
    assert last.any()
    assert bool(goal.known[last].all())
    assert int(goal.x.max()) < spec.vocab
    if source == "mask":
        seen = found.x_t != spec.vocab
        assert torch.equal(goal.x[seen], found.x_t[seen])
        assert bool(goal.known[seen].all())
        assert not bool(goal.known[~last].all())
    else:
        assert not goal.known[~last].any()


def test_a_network_is_told_the_number() -> None:
    spec = spec_of(latent=True)
    net = stirred(spec, 5)
    x, t = torch.zeros(2, spec.length, dtype=torch.int64), torch.full((2,), 0.3)
    other: Any = net(x, *spec.told(t, t, torch.tensor([0.2, 0.9])))
    assert not torch.allclose(other[0], other[1])
    assert torch.equal(net(x, t, t), net(x, t, t, latent=torch.full((2,), 0.5)))


def test_it_writes_tokens_that_go_together_in_one_pass() -> None:
    """Texts of one token throughout, all 0 or all 1. In one pass a product law writes 1 in 8 of them right."""
    tokens, length = 2, 4
    plain = spec_of("mask", tokens, length, 0, step_size=False, time=False, logits="subs", jump="ancestral")
    texts = lambda rows: (RowNoise(3, rows).uniform((len(rows), 1)) < 0.5).long().repeat(1, length)  # noqa: E731
    torch.manual_seed(0)
    net = plain.network()
    optimiser = torch.optim.AdamW(net.parameters(), 1e-2)
    for step in range(100):
        rows = torch.arange(64) + 64 * step
        x_1, t = texts(rows), RowNoise(4, rows).uniform((64, 1))
        x_t = torch.where(RowNoise(5, rows).uniform(x_1.shape) < t, x_1, tokens)
        masked = x_t == tokens
        nn.functional.cross_entropy(net(x_t, torch.zeros(64))[masked], x_1[masked]).backward()
        optimiser.step()
        optimiser.zero_grad()
    net.eval().requires_grad_(False)

    def valid(spec: VelocitySpec, weights: Any) -> float:
        velocity = Velocity(spec, weights, spec.flow_source(), spec.flow_schedule())
        rows = torch.arange(400)
        x_0 = velocity.source.draw((400, length), RowNoise(0, rows), WORLD.device)
        x = solve(Pass(velocity), x_0, 1, velocity.jump(), RowNoise(9, rows)).tokens
        return float((x == x[:, :1]).all(1).double().mean())

    spec = replace(plain, latent=True)
    settings = Di4CSettings(
        tokens=Path("a"),
        init_from=Path("b"),
        out=Path("c"),
        loop=Di4CLoop(steps=150, batch=16, device="cpu"),
        optim=Di4COptim(lr=1e-2, warmup=20, ema=0.95),
    )
    teacher = Velocity(plain, net, plain.flow_source(), plain.flow_schedule())
    parts = Parts(Anywhere(0.25), Average(), OneStep(spec, teacher, 0), FromData(spec))
    task = MixtureTask(settings, spec, None, parts, None, mixture=8, data=0.1)
    task.model.load_state_dict(net.state_dict(), strict=False)
    learner = Learner(task, WORLD, settings.loop, settings.optim)
    for step in range(150):
        rows = torch.arange(16) + 16 * step
        learner.update(HostBatch(texts(rows), rows, rows), step)
    assert learner.ema is not None
    before, after = valid(plain, net), valid(spec, learner.ema.module.eval())
    assert before < 0.25
    assert after > max(0.3, 2 * before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_is_told_a_number_begins_near_its_teacher(kind: str) -> None:
    """Each λ moves the answers a little, no two alike; on the whole they are the teacher's."""
    plain = spec_of(length=4, vocab=5, step_size=False, **KINDS[kind])
    spec, teacher = replace(plain, latent=True), stirred(plain, 1)
    torch.manual_seed(0)
    student = spec.network().double().eval()
    start_from(student, teacher.state_dict(), spec, step_size=False, fit=True, where="here")
    assert student.latent is not None
    many = student.latent(LATENT_SCALE * (torch.arange(256, dtype=torch.float64) + 0.5) / 256)
    size = teacher.embedding.weight.square().mean().sqrt()
    assert many.mean(0).abs().max() < 1e-9
    assert float(many.detach().square().mean().sqrt() / size.detach()) == pytest.approx(LATENT)
    assert (many[0] - many[128]).square().mean().sqrt() > 0.1 * LATENT * size
