"""The objective of distillation. FS-DFM and TS-DFM differ in the midpoint policy and in nothing else.

h from {2^0 … 2^−10}, t on the 1/1024 grid, x_t on the path between x_0 and x_1
h = 1/1024   generalised KL against x_1, or KL against the frozen teacher
h > 1/1024   KL against the semi-teacher's RK-4 target
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tsdfm.compass.model import Compass, lean
from tsdfm.engine.learner import quicken
from tsdfm.engine.rows import held_out_parts
from tsdfm.engine.task import Context
from tsdfm.flow import CumulativeJump, RowNoise, bits_per_character, elbo_rows, interpolate
from tsdfm.flow.loss import LAST_TIME
from tsdfm.kernels.fused import Divergence, GeneralisedKL, Objective, Target, fused_loss
from tsdfm.nn.velocity import Velocity, VelocitySpec, as_model
from tsdfm.student.midpoint import Blind, Energy, Policy, near, policy_from
from tsdfm.student.recorded import RecordedTarget, may_record
from tsdfm.student.refresh import Refresher
from tsdfm.student.settings import StudentSettings
from tsdfm.student.stats import Stats, readable
from tsdfm.student.steps import SMALLEST, draw_steps, is_large, large_share, weights_of
from tsdfm.student.targets import ESTIMATORS, Heads, send, steady, target_of
from tsdfm.tokens.loader import Batch, HostBatch
from tsdfm.tokens.rows import TokenRows

EVAL_STREAM = 1  # noise of the evaluation, apart from the training's
STEP_STREAM = 3  # step sizes and times


@dataclass(frozen=True)
class States:
    """Rows of a batch, the large steps first: states x_t of texts x_1 [B, L]; t and h [B] float64 on the host."""

    x_1: Tensor
    x_t: Tensor
    t: Tensor
    h: Tensor
    large: int
    noise: RowNoise


class StudentTask:
    """What the training loop asks for: the student, the loss of a batch, and held-out ELBO and KL."""

    def __init__(
        self,
        settings: StudentSettings,
        spec: VelocitySpec,
        valid: TokenRows | None,
        *,
        teacher: Velocity | None = None,
        compass: Energy | None = None,
    ) -> None:
        self.settings, self.spec, self.valid = settings, spec, valid
        self.teacher, self.compass = teacher, compass
        self.source, self.schedule = spec.flow_source(), spec.flow_schedule()
        self.weights = weights_of(settings.levels, settings.level_weights)
        self.share = large_share(self.weights, settings.share)
        self.estimator = ESTIMATORS[settings.estimator]
        self.seed = settings.loop.seed
        self.refresher: Refresher | None = None
        self.recorded: RecordedTarget | None = None
        self._held: Tensor | None = None
        torch.manual_seed(self.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model: nn.Module = spec.network()

    def bind(self, context: Context) -> None:
        assert context.ema is not None  # the settings see to it
        self.semi, self.world = context.ema, context.world
        if self.settings.refresh.every:
            assert isinstance(self.compass, Compass)  # the settings see to it
            self.refresher = Refresher(self.compass, self.settings.refresh, self.spec, self.seed)
            self.compass = self.refresher.compass
        elif isinstance(self.compass, Compass) and self.compass.bf16 and context.graphs is not None:
            self.compass = lean(self.compass)
        net = getattr(self.compass, "net", None)
        if self.settings.loop.compile and isinstance(net, nn.Module) and context.world.device.type == "cuda":
            quicken(net, "forward", context.graphs)
        steady_compass = self.refresher is None  # a refreshed one is another in every step
        if self.settings.record and context.graphs is not None and steady_compass:
            self.recorded = RecordedTarget(self.semi, context.graphs)

    def policy(self, step: int, stats: Stats) -> Policy:
        """The midpoint policy at a step of the training."""
        settings, navigate = self.settings, self.settings.navigate
        if navigate.tau_end is not None:
            done = min(1.0, step / settings.loop.steps)
            navigate = replace(navigate, tau=navigate.tau + (navigate.tau_end - navigate.tau) * done)
        if self.spec.anchor and self._held is None:
            self._held = torch.arange(self.spec.length, device=self.world.device) < self.spec.anchor
        jump = CumulativeJump(self.schedule, self.source)
        return policy_from(settings.policy, jump, settings=navigate, compass=self.compass, held=self._held, stats=stats)

    def states(self, x_1: Tensor, rows: Tensor, numbers: Tensor, large: Tensor, stream: int = 0) -> States:
        """Plan the steps of rows with running numbers `rows` (`numbers` on the host) and draw their states."""
        order = torch.argsort((~large).to(torch.int8), stable=True)
        t, h = draw_steps(large[order], self.weights, RowNoise(self.seed, numbers[order], STEP_STREAM + stream))
        there, when = send([order, t], x_1)
        x_1, rows = x_1[there], rows[there.to(rows.device)]
        noise = RowNoise(self.seed, rows, stream)
        x_0 = self.source.draw(x_1.shape, noise, x_1.device)
        x_t = interpolate(x_0, x_1, when, self.schedule, noise)
        x_t[:, : self.spec.anchor] = x_1[:, : self.spec.anchor]
        return States(x_1, x_t, t, h, int(large.sum()), noise)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        if self.refresher is not None and self.refresher.due(step):
            self.refresher.update(batch, self.semi, self.world, step)
        numbers = batch.numbers if isinstance(batch, HostBatch) else batch.rows.cpu()
        found = self.states(batch.tokens, batch.rows, numbers, is_large(numbers, self.share))
        every = self.settings.probe_every
        stats = Stats(self.settings.navigate.k, probe=every > 0 and step % every == 0)
        target = self.large_target(self.semi, found, self.policy(step, stats))
        large, small = self.losses(model, found, target)
        rows = len(batch.rows)
        extras = {"kl": large.detach() / max(self.share, 1e-300), "small": small.detach() / max(1 - self.share, 1e-300)}
        if self.settings.policy != "blind":
            extras |= stats.mean(rows * self.share * self.estimator.midpoints, large.device)
        return large + small, extras

    def large_target(self, semi: nn.Module, found: States, policy: Policy) -> Target | None:
        """The semi-teacher's target for the rows with a large step, which come first."""
        rows = found.large
        if rows == 0 and isinstance(semi, FSDPModule) and self.share > 0:
            # other processes may have some, and every call of a sharded network is a joint one
            rows, policy = 1, Blind(CumulativeJump(self.schedule, self.source))
        if rows == 0:
            return None
        first = torch.arange(rows, device=found.noise.rows.device)
        whole = max(rows, self.most_large(len(found.x_t))) if found.x_t.is_cuda else rows
        x_t, t, h = found.x_t[:whole], found.t[:whole], found.h[:whole]
        make: Callable[..., Target] = partial(target_of, semi)
        if self.recorded is not None and semi is self.recorded.semi and may_record(policy, x_t):
            make = self.recorded
        noise, spec = found.noise.select(first), self.spec
        target = make(x_t, t, h, policy, noise, self.estimator, self.settings.average, spec.anchor, rows)
        return target if found.large else None

    def most_large(self, rows: int) -> int:
        """The most rows with a large step that a batch of so many can hold: the semi-teacher's one batch size."""
        return min(rows, math.ceil(rows * self.share))

    def losses(self, model: nn.Module, found: States, target: Target | None) -> tuple[Tensor, Tensor]:
        """The large and the small steps' part of the mean loss over rows, in one forward of the student."""
        rows, free = len(found.x_t), found.x_t.shape[1] - self.spec.anchor
        x_1, x_t = (x[found.large :, self.spec.anchor :].flatten() for x in (found.x_1, found.x_t))
        small, weight = self.small_objective(found, x_1, x_t)
        even = torch.full((rows,), 1.0 / (rows * free), dtype=torch.float64)
        even[found.large :] *= weight
        even, t, h = send([even, found.t, found.h], x_1)
        scale = even[:, None].expand(-1, free).flatten()

        def then(hidden: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
            hidden = hidden[:, self.spec.anchor :].flatten(0, 1)
            cut = found.large * free
            parts = ((target and Divergence(target, self.reverse), slice(0, cut)), (small, slice(cut, None)))
            kept = [
                fused_loss(hidden[part], head, objective, scale[part]) if objective else hidden.sum() * 0.0
                for objective, part in parts
            ]
            return kept[0], kept[1]

        made: tuple[Tensor, Tensor] = model(*steady(model, found.x_t, t.float(), h.float()), then=then)
        return made

    @property
    def reverse(self) -> bool:
        return self.settings.divergence == "reverse"

    def small_objective(self, found: States, x_1: Tensor, x_t: Tensor) -> tuple[Objective | None, Tensor]:
        """What the rows with the smallest step learn, and its weight for each of them."""
        t = found.t[found.large :]
        if len(t) == 0:
            return None, t
        if self.settings.target == "data":
            return GeneralisedKL(x_1, x_t), self.schedule.rate(t.clamp(max=LAST_TIME))
        assert self.teacher is not None  # `run` loads it
        heads = Heads(copy=False)
        with torch.no_grad():
            hidden, _ = self.teacher.net(
                found.x_t[found.large :],
                near(t, x_t).float(),
                near(found.h[found.large :], x_t).float() if self.teacher.spec.step_size else None,
                then=heads.keep,
            )
        hidden = hidden[:, self.spec.anchor :].flatten(0, 1)
        return Divergence(Target([hidden], (1.0,), *heads.parts()), self.reverse), torch.ones_like(t)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student: a compass that is being refreshed."""
        return self.refresher.parts() if self.refresher is not None else {}

    def summary(self, values: Mapping[str, float]) -> dict[str, float]:
        """Logged means with those of navigation made readable: shares instead of sums per midpoint."""
        return readable(values)

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Held-out rows: the ELBO with steps of 1/1024, and the KL to the large-step target of the averaged weights."""
        if self.valid is None:
            return {}
        world, settings = self.world, self.settings
        rows, parts = held_out_parts(self.valid, settings.eval_rows, settings.loop, world)
        stats = Stats(settings.navigate.k, probe=True)
        sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        for part in parts:
            sums += self._held_out(model, self.valid, part, self.policy(step, stats))
        nats, kl = (sums / sum(map(len, parts))).tolist()
        characters = self.valid.count_characters(self.valid.take(rows))
        tokens = len(rows) * (self.spec.length - self.spec.anchor)
        bits = bits_per_character(nats, tokens, characters) if characters else float("nan")
        found = {"elbo": nats, "bits_per_character": bits}
        return found | ({"kl": kl} if self.share > 0 else {}) | self._navigation(stats)

    def _navigation(self, stats: Stats) -> dict[str, float]:
        """What navigation did in an evaluation, over all processes."""
        if self.settings.policy == "blind" or not stats.midpoints:
            return {}
        means = stats.mean(stats.midpoints, torch.device("cpu"))
        return readable(self.world.mean({name: float(value) for name, value in means.items()}))

    def _held_out(self, model: nn.Module, valid: TokenRows, indices: list[int], policy: Policy) -> Tensor:
        """Sums over some held-out rows: the bound, and the KL of a large step, [2]."""
        device, spec = self.world.device, self.spec
        numbers = torch.tensor(indices)
        x_1 = torch.from_numpy(valid.take(indices).astype("int64")).to(device)
        noise = RowNoise(self.seed, numbers.to(device), EVAL_STREAM)
        given = torch.arange(spec.length, device=device) < spec.anchor
        called = as_model(model, spec)
        bound = elbo_rows(
            called, x_1, self.schedule, self.source, self.settings.eval_times, noise, h=SMALLEST, given=given
        ).sum()
        if not self.share > 0:
            return torch.stack([bound, torch.zeros_like(bound)])
        every = torch.ones(len(indices), dtype=torch.bool)
        found = self.states(x_1, numbers.to(device), numbers, every, EVAL_STREAM)
        kl, _ = self.losses(model, found, self.large_target(model, found, policy))
        return torch.stack([bound, kl.double() * len(indices)])
