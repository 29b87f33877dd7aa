"""A student that is a mixture of product laws: p(x | x_t) = E_λ Π_i p_i(x_i | x_t, λ), λ one number for the whole text.

    x_u    one step of the frozen teacher from x_t
    x      ~ the student's average at x_u, under one λ
    loss   −log (1/M) Σ_m Π_i p_i(x_i | x_t, λ_m) of the student,   M numbers λ_m a row

Of one drawn text its gradient is noisy. Each λ's own law has a loss with the same noise whose mean is known, as the law
of x_i given x_u is q_i:  E[−log p_i(x_i | λ)] = CE(q_i, p_i(· | λ)). So the one is taken off, and the other put on:

    −log (1/M) Σ_m e^{S_m} + (1/M) Σ_m S_m + (1/M) Σ_m Σ_i CE(q_i, p_i(· | λ_m)),   S_m = Σ_i log p_i(x_i | x_t, λ_m)

Its mean is that of the first term. By the logits of (m, i) the gradient is (w_m − 1/M)(p − 1{x_i}) + (1/M)(p − q_i),
w = softmax(S). With M = 1 it is the plain distillation of q. Where x_u tells x_i already, q_i is that token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.compass.propose import propose
from tsdfm.distil.answers import answer, in_chunks, log_probability, own_answer
from tsdfm.distil.chain import send
from tsdfm.distil.meaning import own_tokens, read
from tsdfm.distil.midpoint import near
from tsdfm.distil.parts import Late, States, Teacher
from tsdfm.distil.stats import Stats
from tsdfm.distil.task import LATENT_STREAM, StudentTask
from tsdfm.engine.task import Context
from tsdfm.flow import CumulativeJump, RowNoise, draw
from tsdfm.kernels.fused import CrossEntropy, Divergence, Objective, Target
from tsdfm.kernels.reward import Together
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.tokens.loader import Batch

STEP_STREAM = 15  # the teacher's step, and the draw after it


@dataclass(frozen=True)
class Anywhere:
    """Every row takes a large step h, from any t."""

    h: float
    share: float = 1.0

    @property
    def smallest(self) -> float:
        return self.h

    def large(self, numbers: Tensor, step: int) -> Tensor:
        """All of them, bool [B]."""
        return torch.ones(len(numbers), dtype=torch.bool)

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        """t [B], uniform, and h [B], cut where it would lead past 1; float64."""
        t = noise.uniform((len(large),))
        return t, torch.clamp(1.0 - t, max=self.h)


@dataclass(frozen=True)
class Goal:
    """Texts x [B, L] after the teacher's step, the law of each free position [N], and where x was `known` [B, L]."""

    x: Tensor
    law: Target
    known: Tensor


class OneStep:
    """The roll-out: one step of the frozen teacher, and what the student's average says after it."""

    def __init__(self, spec: VelocitySpec, velocity: Velocity, seed: int) -> None:
        self.spec, self.velocity, self.seed = spec, velocity, seed
        self.jump = CumulativeJump(spec.flow_schedule(), spec.flow_source(), keep_revealed=spec.source == "mask")

    def bind(self, context: Context, teacher: Teacher, student: nn.Module) -> None:
        self.velocity = self.velocity.run_by(context.runner)

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None: ...

    def stats(self, step: int | None) -> Stats | None:
        return None

    @torch.no_grad()
    def goal(self, average: nn.Module, states: States) -> Goal:
        """x_u by the teacher's step, and the average's law there, under a λ of the row's own."""
        spec, rows = self.spec, states.noise.rows
        t, h = send([states.t, states.h], states.x_t)
        noise = RowNoise(self.seed, rows, STEP_STREAM + states.noise.stream)
        u = noise.uniform((len(rows), 1, spec.length, 2)).to(t.device)
        x_u = propose(self.velocity, states.x_t, t, h, u, self.jump, states.given)[:, 0]
        latent = noise.uniform((len(rows),)).to(t.device, torch.float32)
        law = answer(average, spec, x_u, t + h, h, latent)
        chance = noise.uniform((len(rows), spec.length)).to(t.device)[:, spec.anchor :].flatten()
        drawn = in_chunks(law, lambda logits, part: draw(logits, chance[part])).view(len(rows), -1)
        known = (t + h >= 1.0)[:, None].expand_as(x_u)
        if self.jump.source.mask is not None:
            known = known | (x_u != self.jump.source.mask)
        known = known if states.given is None else known | states.given
        x = torch.where(known, x_u, torch.cat([x_u[:, : spec.anchor], drawn], dim=1))
        return Goal(x, law, known)

    def __call__(
        self, teacher: nn.Module, states: States, step: int, stats: Stats | None
    ) -> tuple[Objective | None, Tensor | None]:
        """The plain distillation of the goal: what a mixture of one is."""
        goal = self.goal(teacher, states)
        known = goal.known[:, self.spec.anchor :].flatten().double()
        counts = torch.ones_like(known)
        if self.jump.source.mask is not None:
            counts = (states.x_t[:, self.spec.anchor :] == self.jump.source.mask).flatten().double()
        own = own_tokens(self.spec, states.x_t, near(states.t, states.x_t))
        return read(towards(goal, self.spec, 1, known, 1 - known), own), counts

    def measured(self, stats: Stats, rows: float, device: Any) -> Mapping[str, Tensor]:
        return {}

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        return {}


def towards(goal: Goal, spec: VelocitySpec, times: int, tokens: Tensor, law: Tensor) -> Together:
    """−log p(x) with weights `tokens` and the divergence from the law with weights `law`, both [N], at the goal's free
    positions, which are gone through `times` times."""
    x, own = goal.x[:, spec.anchor :].flatten().repeat(times), goal.law.raised
    raised = None if own is None else (own[0].repeat(times), own[1].repeat(times))
    target = replace(goal.law, hidden=[goal.law.hidden[0].repeat(times, 1)], raised=raised)
    return Together([(CrossEntropy(x), tokens), (Divergence(target), law)])


class MixtureTask(StudentTask):
    """Training of a mixture: every row of a batch is looked at with `mixture` numbers λ."""

    rollout: OneStep
    everywhere = True

    def __init__(self, *task: Any, mixture: int, data: float) -> None:
        """`data` is the weight of −log p of the text itself, which fades as the state fills: · σ(20(½ − t))."""
        super().__init__(*task)
        self.mixture, self.data = mixture, data

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        found = self.begin(batch, step)
        goal = self.rollout.goal(self.teacher.at(step), found)
        measured: dict[str, Tensor] = {}
        many = self.many(found)
        own = own_tokens(self.spec, many.x_t, near(many.t, many.x_t))

        def make(hidden: Tensor, head: nn.Linear) -> tuple[Objective, Tensor]:
            objective, weights = self.mixed(found, goal, own_answer(hidden, head, own), measured)
            return read(objective, own), weights

        late = Late(len(many.x_t), make)
        loss, _ = self.losses(model, many, None, None, late)
        return loss, measured

    def many(self, found: States) -> States:
        """Every row `mixture` times, one whole batch after another, each with a λ of its own."""
        m = self.mixture
        noise = RowNoise(self.seed, found.noise.rows, LATENT_STREAM + found.noise.stream)
        latent = noise.uniform((len(found.x_t), m)).T.flatten().to(found.x_t.device, torch.float32)
        x_1, x_t, t, h = (x.repeat(m, *[1] * (x.ndim - 1)) for x in (found.x_1, found.x_t, found.t, found.h))
        numbers, cut = found.numbers.repeat(m), m * found.cut
        given = None if found.given is None else found.given.repeat(m, 1)
        return States(x_1, x_t, t, h, len(x_t), len(x_t), found.noise, numbers, found.anchor, cut, None, latent, given)

    def mixed(self, found: States, goal: Goal, law: Target, measured: dict[str, Tensor]) -> tuple[Objective, Tensor]:
        """The objective of M·N positions: weights that say which λ explains a text best, and the goal's law."""
        m, shape, free = self.mixture, (self.mixture, len(found.x_t), -1), slice(self.spec.anchor, None)
        known = goal.known[:, free].double()
        counts = torch.ones_like(known)
        if self.source.mask is not None:
            counts = (found.x_t[:, free] == self.source.mask).double()
        counts = counts if found.given is None else counts * ~found.given[:, free]

        def evidence(x: Tensor) -> Tensor:
            """S [M, B]: the log-probability of texts x [B, L] under each λ."""
            flat = x[:, free].flatten().repeat(m)
            each = in_chunks(law, lambda logits, part: log_probability(logits, flat[part]))
            return (each.view(shape) * counts).sum(-1)

        scores = evidence(goal.x)
        mean = scores.logsumexp(0) - math.log(m)
        whole = counts.sum().clamp(min=1)
        measured |= {"nll": -mean.sum() / whole, "gain": (mean - scores.mean(0)).sum() / whole}
        best = scores.softmax(0)[..., None] * m - 1.0  # M times as many rows: M times what is written above
        parts = towards(goal, self.spec, m, (best + known).flatten(), (1 - known).expand(m, -1, -1).flatten())
        if not self.data:
            return parts, counts.expand(m, -1, -1).flatten()
        fades = self.data * torch.sigmoid(20 * (0.5 - found.t)).to(known.device)[:, None]
        own = evidence(found.x_1).softmax(0)[..., None] * m * fades
        text = CrossEntropy(found.x_1[:, free].flatten().repeat(m))
        both = Together([*parts.parts, (text, own.expand(shape[0], shape[1], known.shape[1]).flatten())])
        return both, counts.expand(m, -1, -1).flatten()
