"""Training of a many-step model: predict x_1 from x_t.

t by the method's law,   x_0 ~ source,   x_t on the path between x_0 and x_1,   the method's loss of logits(x_t, t)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.engine.rows import held_out_parts
from tsdfm.engine.runner import as_written
from tsdfm.engine.settings import LoopSettings
from tsdfm.engine.task import Context
from tsdfm.flow import Bound, RowNoise, bits_per_character, interpolate
from tsdfm.kernels.fused import Objective, fused_loss
from tsdfm.nn.velocity import VelocitySpec, as_model
from tsdfm.teacher.settings import TeacherSettings
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows

EVAL_STREAM = 1  # noise of the evaluation, apart from the training's


class TextLoss(Protocol):
    """What a many-step method minimises, at the free positions of a batch: x_1, x_t [B, L], t [B] float64."""

    def times(self, rows: Tensor, seed: int) -> Tensor:
        """The time [B] in [0, 1] of each running row number [B]."""
        ...

    def plain(self, logits: Tensor, x_1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The mean over positions, from logits [B, L, V], by autograd."""
        ...

    def fused(self, x_1: Tensor, x_t: Tensor, t: Tensor) -> tuple[Objective, Tensor] | None:
        """The same for kernels: an objective of the B·L positions, and their weights, [B, 1] or [B, L].

        None: there is none, and whole logits are made.
        """
        ...


@runtime_checkable
class Cuts(Protocol):
    """A loss that also learns from shorter rows."""

    def length(self, longest: int, step: int, seed: int) -> int:
        """How many free positions of `longest` the rows of a training step have, on all processes alike."""
        ...


class Measures(Protocol):
    """What a task that measures the bound asks of its settings."""

    @property
    def eval_rows(self) -> int: ...
    @property
    def eval_times(self) -> int: ...
    @property
    def loop(self) -> LoopSettings: ...


class BoundTask:
    """A network of `spec` with fresh weights, and the bound of held-out rows. A subclass says what is minimised."""

    def __init__(self, settings: Measures, spec: VelocitySpec, valid: TokenRows | None, bound: Bound | None) -> None:
        self.settings, self.spec, self.valid, self.bound = settings, spec, valid, bound
        self.source, self.schedule = spec.flow_source(), spec.flow_schedule()
        torch.manual_seed(settings.loop.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model: nn.Module = spec.network()
        self.seed = settings.loop.seed

    def bind(self, context: Context) -> None:
        self.world = context.world

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """As `engine.task.Task` has it."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """The bound of held-out rows: nats per token, and bits per character of their text."""
        if self.valid is None or self.bound is None:
            return {}
        world, settings = self.world, self.settings
        rows, parts = held_out_parts(self.valid, settings.eval_rows, settings.loop, world)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for part in parts:
            total += self._bound(model, self.valid, part, self.bound).sum()
        nats = total.item() / sum(map(len, parts))
        characters = self.valid.count_characters(self.valid.take(rows))
        free = self.spec.length - self.spec.anchor
        bits = bits_per_character(nats, len(rows) * free, characters) if characters else float("nan")
        return {"elbo": nats, "bits_per_character": bits}

    def _bound(self, model: nn.Module, valid: TokenRows, indices: list[int], bound: Bound) -> Tensor:
        """The bound of some held-out rows, nats per token [n]."""
        device, spec = self.world.device, self.spec
        x_1 = torch.from_numpy(valid.take(indices).astype("int64")).to(device)
        noise = RowNoise(self.seed, torch.tensor(indices, device=device), stream=EVAL_STREAM)
        given = torch.arange(spec.length, device=device) < spec.anchor
        times = self.settings.eval_times
        return bound.rows(as_model(model, spec), x_1, self.schedule, self.source, times, noise, given=given)


class TeacherTask(BoundTask):
    """What the training loop asks for: the network, the loss of a batch, and the held-out bound."""

    def __init__(
        self,
        settings: TeacherSettings,
        spec: VelocitySpec,
        valid: TokenRows | None,
        objective: TextLoss,
        bound: Bound | None,
    ) -> None:
        super().__init__(settings, spec, valid, bound)
        self.objective = objective

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        anchor, longest = self.spec.anchor, batch.tokens.shape[1]
        if isinstance(self.objective, Cuts):
            length = anchor + self.objective.length(longest - anchor, step, self.seed)
            if length < longest:
                with as_written():  # a length that seldom comes again is not worth compiling
                    return self.whole(model, replace(batch, tokens=batch.tokens[:, :length]))
        return self.whole(model, batch)

    def whole(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of rows of any length."""
        x_1, noise = batch.tokens, RowNoise(self.seed, batch.rows)
        t = self.objective.times(batch.rows, self.seed)
        x_0 = self.source.draw(x_1.shape, noise, x_1.device)
        x_t = interpolate(x_0, x_1, t, self.schedule, noise)
        x_t[:, : self.spec.anchor] = x_1[:, : self.spec.anchor]
        free = slice(self.spec.anchor, None)
        fused = self.objective.fused(x_1[:, free], x_t[:, free], t) if kernels.on(x_1, "rows") else None
        if fused is not None:
            return self._fused(model, x_t, t, *fused), {}
        logits = model(x_t, self._told(t))
        return self.objective.plain(logits[:, free], x_1[:, free], x_t[:, free], t), {}

    def _told(self, t: Tensor) -> Tensor:
        return self.spec.told(t.float(), t)[0]

    def _fused(self, model: nn.Module, x_t: Tensor, t: Tensor, objective: Objective, weight: Tensor) -> Tensor:
        """The same loss without ever making the logits of the whole batch: by kernels, where they run."""
        anchor = self.spec.anchor
        free = x_t.shape[1] - anchor
        each = (weight * (1.0 / (len(x_t) * free))).expand(-1, free).flatten()

        def then(hidden: Tensor, head: nn.Linear) -> Tensor:
            return fused_loss(hidden[:, anchor:].flatten(0, 1), head, objective, each)

        loss: Tensor = model(x_t, self._told(t), then=then)
        return loss
