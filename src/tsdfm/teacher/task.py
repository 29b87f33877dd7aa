"""Training of a many-step model: predict x_1 from x_t.

t by the method's law,   x_0 ~ source,   x_t on the path between x_0 and x_1,   the method's loss of logits(x_t, t)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.engine.runner import as_written
from tsdfm.engine.settings import LoopSettings
from tsdfm.engine.task import Context
from tsdfm.flow import Bound, RowNoise, interpolate
from tsdfm.kernels.fused import Objective, fused_loss
from tsdfm.nn.bound import held_out_bound
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.teacher.settings import TeacherSettings
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows


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
        if self.valid is None:
            return {}
        asked = (self.settings.eval_rows, self.settings.eval_times, self.settings.loop)
        return held_out_bound(model, self.spec, self.bound, self.valid, *asked, self.world)


@dataclass(frozen=True)
class SoftStates:
    """States that a loss made by itself, of which the network is shown laws over tokens (`DDiT.embed`).

    `loss` is the loss of just these states x_t [B, L] at t [B]. Shown are tokens [B, L, k], of which the first are x_1,
    and weights [B, L, k+1].
    """

    loss: TextLoss
    x_t: Tensor
    t: Tensor
    tokens: Tensor
    weights: Tensor

    def sure(self, known: Tensor) -> Tensor:
        """The weights with all of it on x_1 where that is `known`, [L] or [B, L]."""
        own = torch.zeros_like(self.weights[0, 0])
        own[0] = 1.0
        return torch.where(known[..., None], own, self.weights)


@runtime_checkable
class Softens(Protocol):
    """A loss that makes states of its own at some steps of the training."""

    def states(self, x_1: Tensor, t: Tensor, noise: RowNoise, step: int) -> SoftStates | None:
        """The states of texts x_1 [B, L] by times t [B], or none: those of the path, as always."""
        ...


class TeacherTask(BoundTask):
    """What the training loop asks for: the network, the loss of a batch, and the held-out bound."""

    prompts: ClassVar[bool] = True

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
        if isinstance(self.objective, Cuts) and batch.given is None:  # what is cut off is text, not an answer
            length = anchor + self.objective.length(longest - anchor, step, self.seed)
            if length < longest:
                with as_written():  # a length that seldom comes again is not worth compiling
                    return self.whole(model, replace(batch, tokens=batch.tokens[:, :length]), step)
        return self.whole(model, batch, step)

    def whole(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of rows of any length."""
        x_1, noise = batch.tokens, RowNoise(self.seed, batch.rows)
        loss, known = self.objective, batch.known(self.spec.anchor)
        t = loss.times(batch.rows, self.seed)
        soft = loss.states(x_1, t, noise, step) if isinstance(loss, Softens) else None
        if soft is None:
            x_t = interpolate(self.source.draw(x_1.shape, noise, x_1.device), x_1, t, self.schedule, noise)
        else:
            loss, x_t, t = soft.loss, soft.x_t, soft.t
        x_t = torch.where(known, x_1, x_t)
        told = self.spec.told(t.float(), t)[0]
        shown = (x_t, told) if soft is None else (soft.tokens, told, None, soft.sure(known))
        free = slice(self.spec.anchor, None)
        chunked = kernels.on(x_1, "rows") or batch.given is not None
        fused = loss.fused(x_1[:, free], x_t[:, free], t) if chunked else None
        if fused is not None:
            return self._fused(model, shown, *fused, self.share(batch)), {}
        logits = model(*shown)
        if batch.given is None:
            return loss.plain(logits[:, free], x_1[:, free], x_t[:, free], t), {}
        rows = zip(logits, x_1, x_t, t, ~batch.given, strict=True)  # each has free positions of its own
        each = [loss.plain(l[f][None], x[f][None], z[f][None], s[None]) for l, x, z, s, f in rows]
        return torch.stack(each).mean(), {}

    def share(self, batch: Batch) -> Tensor | float:
        """What a position behind the anchor counts in the mean over free positions and rows: a number, or [B, L']."""
        rows, anchor = len(batch.tokens), self.spec.anchor
        if batch.given is None:
            return 1.0 / (rows * (batch.tokens.shape[1] - anchor))
        free = ~batch.given[:, anchor:]
        return free / (rows * free.sum(-1, keepdim=True)).double()

    def _fused(
        self,
        model: nn.Module,
        shown: tuple[Tensor | None, ...],
        objective: Objective,
        weight: Tensor,
        share: Tensor | float,
    ) -> Tensor:
        """The same loss without ever making the logits of the whole batch: by kernels, where they run."""
        anchor = self.spec.anchor

        def then(hidden: Tensor, head: nn.Linear) -> Tensor:
            each = (weight * share).expand(-1, hidden.shape[1] - anchor).flatten()
            return fused_loss(hidden[:, anchor:].flatten(0, 1), head, objective, each)

        found: Tensor = model(*shown, then=then)
        return found
