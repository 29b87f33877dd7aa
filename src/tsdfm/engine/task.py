"""What a stage hands to the training loop, and what the loop hands back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from tsdfm.engine.distributed import Processes
from tsdfm.engine.graphs import GraphMemory
from tsdfm.engine.optim import Optimiser
from tsdfm.errors import UserError


class Batch(Protocol):
    """Rows of one step on this process, as `tokens.loader.Batch` gives them (a dataclass)."""

    @property
    def tokens(self) -> Tensor:
        """int64 [b, L]."""

    @property
    def rows(self) -> Tensor:
        """int64 [b], the running row numbers that key the noise."""


Feed = Callable[[int], Iterator[Any]]
"""`feed(step)`: this process's batches from that step on, on the device; `fit` closes it at the end."""


class Task(Protocol):
    """A stage's objective. `model` is the plain module to train; the loop moves, wraps, compiles and saves it.

    A task may also have `bind` (see `Binds`); `summary(means)`, which turns the means of a report into what is written,
    where a mean alone would not read well (a ratio of two of them, say); `parts()`, live tensors by file and name that
    a checkpoint must hold besides the model, where the objective trains something of its own; `prompts`, true where it
    knows what to do with rows that have one; and `whole`, true where it cannot learn from a part of a step's rows.
    """

    @property
    def model(self) -> nn.Module:
        """The module whose parameters are trained and saved."""

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Scalar loss of a (micro-)batch and scalar tensors to log.

        Call `model`, which may be the wrapped network, rather than `self.model`. The loss is a mean in which every row
        weighs the same, so that parts of a batch, on one device or on many, average to the loss of the whole. Nothing
        here should move a value to the host: the loop reads them at `log_every` only. A loss without gradients leaves
        the model as it is in this step.
        """

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Held-out metrics of the averaged weights (the plain ones without EMA), in eval mode, without gradients.

        Every process calls it and the values are averaged, so rows may be shared out by `Context.world`, as long as
        each process calls the model equally often (with FSDP every call is a joint one).
        """


@dataclass(frozen=True)
class Context:
    """What the loop made that an objective may need: given once to `task.bind`, if the task has it, before step 0."""

    ema: nn.Module | None
    """The averaged weights as a network in eval mode, up to date at every step: a distillation's semi-teacher. It may
    be compiled or recorded (`engine.runner`)."""
    world: Processes
    graphs: GraphMemory | None = None
    """Where passes may be recorded (`engine.graphs`); None where they may not."""
    runner: Callable[[nn.Module], nn.Module] = lambda net: net
    """Another frozen network, whose weights are only ever changed in place, as it is best called: as the average is."""
    optimiser: Optimiser | None = None
    """The model's optimiser, for a task that slows it down or starts it anew; None outside a training."""


@runtime_checkable
class Binds(Protocol):
    """A task that wants to see the averaged model or the processes."""

    def bind(self, context: Context) -> None:
        """Called once, before step 0 and before a checkpoint is loaded."""
        ...


@dataclass(frozen=True, kw_only=True)
class Record:
    """What goes into the manifests of a run and of its checkpoints."""

    stage: str
    settings: Any
    inputs: Mapping[str, Path] = field(default_factory=dict)
    parent: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What a resumed run must share with its checkpoint besides batch, seed, optimiser and inputs."""
    then: tuple[str | Path, ...] = ()
    """The words of the command that comes next."""


B = TypeVar("B")


def split(batch: B, micro: int | None) -> list[B]:
    """Cut a batch into equal parts of `micro` rows; every tensor field has the rows in front."""
    values = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}  # type: ignore[arg-type]
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    rows = len(next(iter(tensors.values())))
    if micro is None or micro >= rows:
        return [batch]
    if rows % micro:
        raise UserError(f"a step has {rows} rows on each process, which micro = {micro} does not divide")
    parts = {name: value.reshape(-1, micro, *value.shape[1:]) for name, value in tensors.items()}
    return [
        dataclasses.replace(batch, **{name: part[i] for name, part in parts.items()})  # type: ignore[type-var]
        for i in range(rows // micro)
    ]
