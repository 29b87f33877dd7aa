"""What a distillation is made of. FS-DFM, TS-DFM and their neighbours are values of these four.

    Times      which rows take a large step, and its t and h
    Teacher    whose answers are learned: the student's own average, a frozen model, one that is renewed in rounds
    Rollout    the target of the large steps: what the teacher says of a step after taking it in smaller ones
    Floor      what the smallest step, which has no smaller ones, learns

Shapes: B rows of a batch of which the first `large` take a large step; L positions, N learned in all, |V| tokens.
Learned are the free positions, those behind the anchor; of a network that answers at [MASK] alone, the masked ones.
What a row with a prompt has given stays among the free positions, where its weight is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tsdfm.distil.stats import Stats
from tsdfm.engine.task import Context
from tsdfm.flow import RowNoise
from tsdfm.kernels.fused import Objective


@dataclass(frozen=True)
class States:
    """Rows of a batch, the large steps first: states x_t of texts x_1 [B, L]; t and h [B] float64 on the host.

    `most` is the number of large steps that a batch of so many rows can hold: a compiled teacher's one batch size.
    `numbers` [B] are the rows' running numbers on the host, `noise` draws by them on the device. `places` [N] are the
    learned positions among the B·L, where they are fewer than the free ones, on the host and, for `learned`, on the
    device; the first `cut` of the learned ones are those of the large steps. `latent` [B] are the numbers that a
    student with such is told. `given` [B, L] is what rows with a prompt hold at every time, and never learn.
    """

    x_1: Tensor
    x_t: Tensor
    t: Tensor
    h: Tensor
    large: int
    most: int
    noise: RowNoise
    numbers: Tensor
    anchor: int
    cut: int
    places: tuple[Tensor, Tensor] | None = None
    latent: Tensor | None = None
    given: Tensor | None = None

    def after(self, rows: int) -> States:
        """The same without the first `rows` rows, which took a large step; all free positions must be learned."""
        rest = torch.arange(rows, len(self.x_t), device=self.noise.rows.device)
        x_1, x_t, t, h, numbers = (x[rows:] for x in (self.x_1, self.x_t, self.t, self.h, self.numbers))
        return replace(
            self,
            x_1=x_1,
            x_t=x_t,
            t=t,
            h=h,
            large=self.large - rows,
            most=max(0, self.most - rows),
            noise=self.noise.select(rest),
            numbers=numbers,
            cut=self.cut - rows * (x_t.shape[1] - self.anchor),
            latent=None if self.latent is None else self.latent[rows:],
            given=None if self.given is None else self.given[rows:],
        )

    def shares(self) -> Tensor:
        """What each position counts in the mean over rows of a row's own mean over what is not given, [B, L] float64.

        1/(B·(L − anchor)) everywhere, or in rows with a prompt 1/(B·F) at the F positions of the answer and else 0.
        """
        rows, length = self.x_t.shape
        if self.given is None:
            even = torch.full((), 1.0 / (rows * (length - self.anchor)), dtype=torch.float64, device=self.x_t.device)
            return even.expand(rows, length)
        free = ~self.given
        return free / (rows * free.sum(-1, keepdim=True).clamp(min=1)).double()

    def learned(self, x: Tensor) -> Tensor:
        """What lies at the learned positions, row after row: x [B, L, …] → [N, …]; of the first rows alone, theirs."""
        if self.places is None:
            return x[:, self.anchor :].flatten(0, 1)
        places = self.places[1]
        return x.flatten(0, 1).index_select(0, places if len(x) == len(self.x_t) else places[: self.cut])

    def learned_small(self, x: Tensor) -> Tensor:
        """The same of the rows with the smallest step, from x [B − large, L, …] of these alone."""
        if self.places is None:
            return x[:, self.anchor :].flatten(0, 1)
        return x.flatten(0, 1).index_select(0, self.places[1][self.cut :] - self.large * self.x_t.shape[1])


@dataclass(frozen=True)
class Late:
    """An objective of the first `rows` rows that is known only inside the student's forward, from its own answers.

    `make(hidden [N, D], head)` gives it for their free positions [N], with the weight of each [N], float64.
    """

    rows: int
    make: Callable[[Tensor, nn.Linear], tuple[Objective, Tensor]]


class Times(Protocol):
    """The law of a row's step. Everything follows from its running number, on the host."""

    @property
    def share(self) -> float:
        """The share of rows with a large step."""
        ...

    @property
    def smallest(self) -> float:
        """The step size of the others."""
        ...

    def large(self, numbers: Tensor, step: int) -> Tensor:
        """Which running row numbers [B] take a large step at this step of the training, bool [B]."""
        ...

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        """t [B] and h [B], float64."""
        ...


class Teacher(Protocol):
    """Whose answers are learned."""

    def bind(self, context: Context, student: nn.Module) -> None:
        """Take what the loop has made; `student` is the plain network that is trained."""
        ...

    def at(self, step: int) -> nn.Module:
        """The network to ask at a step of the training."""
        ...

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        """What a checkpoint must hold for a resumed run to ask the same network."""
        ...


class Rollout(Protocol):
    """The target of the large steps."""

    def bind(self, context: Context, teacher: Teacher, student: nn.Module) -> None:
        """Take what the loop has made; `student` is the plain network that is trained."""
        ...

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None:
        """Called once for every (micro-)batch before its targets are made."""
        ...

    def stats(self, step: int | None) -> Stats | None:
        """A collector for what a batch of this step measures (None: an evaluation's), or nothing to measure."""
        ...

    def __call__(
        self, teacher: nn.Module, states: States, step: int, stats: Stats | None
    ) -> tuple[Objective | None, Tensor | None]:
        """An objective of the first `large` rows' learned positions [N], or None where there is no such row.

        Beside it the positions' weights [N], float64 (none: all alike), on which the mean over rows is taken.
        """
        ...

    def measured(self, stats: Stats, rows: float, device: Any) -> Mapping[str, Tensor]:
        """What was measured on so many rows (on average), as scalars on the device."""
        ...

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]: ...


class Floor(Protocol):
    """What the rows with the smallest step learn."""

    def __call__(self, states: States, x_1: Tensor, x_t: Tensor) -> tuple[Objective | None, Tensor]:
        """An objective of their learned positions x_1, x_t [N], and the weight of each row, float64 on the host."""
        ...


@dataclass(frozen=True)
class Parts:
    """A distillation."""

    times: Times
    teacher: Teacher
    rollout: Rollout
    floor: Floor
