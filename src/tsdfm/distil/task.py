"""Training of a student: one loop over the four parts of a distillation (`distil.parts`).

x_t on the path between x_0 and x_1, at the times and step sizes of `Times`
large steps     divergence from the `Rollout`'s target, which asks the `Teacher`
smallest step   what the `Floor` says
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from tsdfm.distil.chain import send
from tsdfm.distil.parts import Late, Parts, States
from tsdfm.distil.settings import DistilSettings
from tsdfm.distil.stats import Stats, readable
from tsdfm.engine.rows import held_out_parts
from tsdfm.engine.task import Context
from tsdfm.flow import Bound, RowNoise, interpolate
from tsdfm.kernels.fused import Objective, fused_loss
from tsdfm.nn.bound import EVAL_STREAM, held_out_bound
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows

STEP_STREAM = 3  # step sizes and times
LATENT_STREAM = 5  # the numbers that a student with such is told


class StudentTask:
    """What the training loop asks for: the student, the loss of a batch, and held-out bound and divergence."""

    prompts: ClassVar[bool] = True
    held_out = "kl"
    """What the loss of held-out rows with a large step is called."""
    everywhere = False
    """Is something learned at every free position, also by a network that answers at [MASK] alone?"""

    def __init__(
        self,
        settings: DistilSettings,
        spec: VelocitySpec,
        valid: TokenRows | None,
        made_of: Parts,
        bound: Bound | None,
    ) -> None:
        self.settings, self.spec, self.valid, self.bound = settings, spec, valid, bound
        self.times, self.teacher = made_of.times, made_of.teacher
        self.rollout, self.floor = made_of.rollout, made_of.floor
        self.source, self.schedule = spec.flow_source(), spec.flow_schedule()
        self.seed = settings.loop.seed
        torch.manual_seed(self.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model: nn.Module = spec.network()

    def bind(self, context: Context) -> None:
        self.world = context.world
        self.teacher.bind(context, self.model)
        self.rollout.bind(context, self.teacher, self.model)

    def states(
        self,
        x_1: Tensor,
        rows: Tensor,
        numbers: Tensor,
        large: Tensor,
        step: int = 0,
        stream: int = 0,
        given: tuple[Tensor, Tensor] | None = None,
    ) -> States:
        """Plan the steps of rows with running numbers `rows` (`numbers` on the host) and draw their states.

        `given` [B, L] is on the device and on the host.
        """
        order = torch.argsort((~large).to(torch.int8), stable=True)
        numbers = numbers[order]
        t, h = self.times.draw(large[order], RowNoise(self.seed, numbers, STEP_STREAM + stream), step)
        many, length = int(large.sum()), x_1.shape[1]
        if self.spec.logits != "subs" or self.everywhere:
            held = None if given is None else given[0]
            return self.noised(x_1, rows, numbers, order, t, h, many, stream, held)
        masked = self.masked(numbers, t, stream, None if given is None else given[1][order])
        there, places = send([order, masked], x_1)
        x_1, noise = x_1[there], RowNoise(self.seed, rows[there.to(rows.device)], stream, draws=1)
        x_t = x_1.flatten().index_fill(0, places, self.spec.vocab).view_as(x_1)  # [MASK] has the id |V|
        cut = int((masked < many * length).sum())
        held = None if given is None else given[0][there]
        known = (self.most(x_1), noise, numbers, self.spec.anchor, cut, (masked, places))
        return States(x_1, x_t, t, h, many, *known, given=held)

    def most(self, x_1: Tensor) -> int:
        """How many rows with a large step a batch of so many rows can hold."""
        return min(len(x_1), math.ceil(len(x_1) * self.times.share))

    def noised(
        self,
        x_1: Tensor,
        rows: Tensor,
        numbers: Tensor,
        order: Tensor,
        t: Tensor,
        h: Tensor,
        large: int,
        stream: int,
        given: Tensor | None = None,
    ) -> States:
        """The states of rows taken in `order`, at t and h, of which the first `large` take a large step."""
        there, when = send([order, t], x_1)
        x_1, rows = x_1[there], rows[there.to(rows.device)]
        noise = RowNoise(self.seed, rows, stream)
        x_0 = self.source.draw(x_1.shape, noise, x_1.device)
        x_t = interpolate(x_0, x_1, when, self.schedule, noise)
        anchor = self.spec.anchor
        x_t[:, :anchor] = x_1[:, :anchor]
        if given is not None:
            given = given[there]
            x_t = torch.where(given, x_1, x_t)
        cut, latent = large * (x_1.shape[1] - anchor), None
        if self.spec.latent:
            own = RowNoise(self.seed, rows, LATENT_STREAM + stream)
            latent = own.uniform((len(rows),)).to(x_t.device, torch.float32)
        return States(x_1, x_t, t, h, large, self.most(x_1), noise, numbers, anchor, cut, None, latent, given)

    def masked(self, numbers: Tensor, t: Tensor, stream: int, given: Tensor | None = None) -> Tensor:
        """The positions [N] among the B·L that are [MASK] at t [B], none of them `given` [B, L].

        Drawn on the host, where they have to be counted: nobody waits for the device. The first draw of a row's noise
        is used, as `interpolate` would.
        """
        noise = RowNoise(self.seed, numbers, stream)
        arrived = noise.uniform((len(t), self.spec.length)) < self.schedule.kappa(t)[:, None]
        arrived[:, : self.spec.anchor] = True
        arrived = arrived if given is None else arrived | given
        return (~arrived).flatten().nonzero()[:, 0]

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        teacher = self.teacher.at(step)
        self.rollout.begin(batch, teacher, step)
        found = self.begin(batch, step)
        stats = self.rollout.stats(step)
        large, small = self.losses(model, found, *self.rollout(teacher, found, step, stats))
        share = self.times.share
        extras = {"kl": large.detach() / max(share, 1e-300), "small": small.detach() / max(1 - share, 1e-300)}
        if stats is not None:
            extras |= self.rollout.measured(stats, len(batch.rows) * share, large.device)
        return large + small, extras

    def begin(self, batch: Batch, step: int) -> States:
        """The states of a batch at a step of the training."""
        numbers, here = batch.on_host()
        given = None if batch.given is None or here is None else (batch.given, here)
        return self.states(batch.tokens, batch.rows, numbers, self.times.large(numbers, step), step, given=given)

    def losses(
        self,
        model: nn.Module,
        found: States,
        goal: Objective | None,
        each: Tensor | None = None,
        late: Late | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The large and the small steps' part of the mean loss over rows, in one forward of the student.

        `goal` is what the rows with a large step learn at their positions, with weights `each` [N] (none: all alike).
        The first of them may learn what is known `late`; then `goal` and `each` are of those after them.
        A position that is not learned counts as one whose loss is 0: the mean is over all free positions, or all
        positions of a row's answer.
        """
        rows, free, cut = len(found.x_t), found.x_t.shape[1] - self.spec.anchor, found.cut
        first = late.rows * free if late is not None else 0
        x_1, x_t = (found.learned(x)[cut:] for x in (found.x_1, found.x_t))
        small, weight = self.floor(found, x_1, x_t)
        even = torch.ones(rows, dtype=torch.float64)
        even[found.large :] *= weight
        even, t, h = send([even, found.t, found.h], x_1)
        scale = found.learned(found.shares() * even[:, None])
        if each is not None:
            scale = torch.cat([scale[:first], scale[first:cut] * each, scale[cut:]])

        def then(hidden: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
            hidden = found.learned(hidden)
            parts = ((goal, slice(first, cut)), (small, slice(cut, None)))
            large, little = (
                fused_loss(hidden[part], head, objective, scale[part]) if objective else hidden.sum() * 0.0
                for objective, part in parts
            )
            if late is not None:
                objective, weights = late.make(hidden[:first], head)
                large = large + fused_loss(hidden[:first], head, objective, scale[:first] * weights)
            return large, little

        told = self.spec.told(t.float(), h.float(), found.latent)
        made: tuple[Tensor, Tensor] = model(found.x_t, *told, then=then)
        return made

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student: what the teacher and the roll-out train or renew."""
        return {**self.teacher.parts(), **self.rollout.parts()}

    def summary(self, values: Mapping[str, float]) -> dict[str, float]:
        """Logged means with those of navigation made readable: shares instead of sums per midpoint."""
        return readable(values)

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Held-out rows: the bound with the smallest step, and the divergence from the large steps' target."""
        if self.valid is None:
            return {}
        settings, stats = self.settings, self.rollout.stats(None)
        asked = (settings.eval_rows, settings.eval_times, settings.loop, self.world, self.times.smallest)
        found = held_out_bound(model, self.spec, self.bound, self.valid, *asked)
        if self.times.share > 0:
            _, parts = held_out_parts(self.valid, settings.eval_rows, settings.loop, self.world)
            kl = sum(self._divergence(model, self.valid, part, step, stats) for part in parts)
            found[self.held_out] = float(kl) / sum(map(len, parts))
        return found | self._navigation(stats)

    def _navigation(self, stats: Stats | None) -> dict[str, float]:
        """What the roll-outs of an evaluation measured, over all processes."""
        if stats is None or not stats.midpoints:
            return {}
        means = stats.mean(stats.midpoints, torch.device("cpu"))
        return readable(self.world.mean({name: float(value) for name, value in means.items()}))

    def _divergence(
        self, model: nn.Module, valid: TokenRows, indices: list[int], step: int, stats: Stats | None
    ) -> Tensor:
        """The divergence of a large step, summed over some held-out rows."""
        device, numbers = self.world.device, torch.tensor(indices)
        x_1 = torch.from_numpy(valid.take(indices).astype("int64")).to(device)
        every, last = torch.ones(len(indices), dtype=torch.bool), max(step - 1, 0)  # the step the student took last
        here = torch.from_numpy(valid.given(indices)) if valid.prompted else None
        given = None if here is None else (here.to(device), here)
        found = self.states(x_1, numbers.to(device), numbers, every, last, EVAL_STREAM, given)
        return self.held_out_loss(model, found, step, last, stats).double() * len(indices)

    def held_out_loss(self, model: nn.Module, found: States, step: int, last: int, stats: Stats | None) -> Tensor:
        """The mean loss of held-out rows, which all take a large step, by the teacher of the `last` step."""
        return self.losses(model, found, *self.rollout(self.teacher.at(last), found, step, stats))[0]
