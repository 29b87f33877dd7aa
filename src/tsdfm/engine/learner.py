"""Everything a training step changes: the model, its average and the optimiser, on one process or many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.engine.distributed import World, broadcast_weights, gradients, release, shard, wrap
from tsdfm.engine.ema import Ema
from tsdfm.engine.gather import gather, scatter
from tsdfm.engine.graphs import Pool, Replayed, Trained
from tsdfm.engine.optim import Optimiser, lr_at
from tsdfm.engine.precision import autocast, seed_step, use_bf16
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Binds, Context, Task, split
from tsdfm.store.checkpoint import Tensors


class Learner:
    """Places `task.model` on its device, copies it for the average, compiles, wraps, and makes the optimiser."""

    def __init__(self, task: Task, world: World, loop: LoopSettings, optim: OptimSettings) -> None:
        self.task, self.world, self.loop, self.optim = task, world, loop, optim
        self.bf16 = use_bf16(loop.precision, world.device)
        self.plain = task.model.to(world.device)
        broadcast_weights(self.plain, world)
        self.ema = Ema(self.plain, optim.ema, warmup=optim.ema_warmup) if optim.ema > 0 else None
        sharded = world.size > 1 and loop.parallel == "fsdp"
        if loop.compile:
            for module in [self.plain, *([self.ema.module] if self.ema else [])]:
                compile_in_place(module, by_block=sharded)
        self.model = wrap(self.plain, world, loop.parallel, bf16=self.bf16)
        if self.ema is not None:
            if sharded:
                shard(self.ema.module, world, bf16=self.bf16, hold_root=False)
            self.ema.follow(self.plain)
        self.optimiser = Optimiser(self.plain, optim)
        dropouts = (m for m in self.plain.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
        self.random = any(m.p > 0 for m in dropouts)  # else nothing draws from torch's own generator
        self.pool = Pool() if loop.compile and loop.graphs and world.device.type == "cuda" and not sharded else None
        if self.pool is not None:
            self._record(self.pool)
        if isinstance(task, Binds):
            task.bind(Context(ema=self.ema.module if self.ema else None, world=world, graphs=self.pool))

    def _record(self, pool: Pool) -> None:
        """Let the bodies of the network and of its average be replayed (`engine.graphs`), where they have one.

        With several processes the trained one is left out: DDP's own work belongs between its launches.
        """
        if self.ema is not None:
            _wrap_body(self.ema.module, lambda body, module: Replayed(body, module, pool))
        if self.world.size == 1 and self.loop.micro is None:
            _wrap_body(self.plain, lambda body, module: Trained(body, module, pool))

    def update(self, batch: Any, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """One optimiser step on this process's rows. Returns what was measured and whether it had to be skipped."""
        if self.random:
            seed_step(self.loop.seed, step, self.world.rank)
        if not self.plain.training:
            self.model.train()
        values = self._backward(batch, step)
        norm, bad = self.optimiser.step(lr_at(step, self.loop.steps, self.optim))
        if self.ema is not None:
            self.ema.update(step)
        return {**values, "grad_norm": norm}, bad

    def _backward(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Add up the gradient of the mean loss over the micro-batches; return the means of what they measured."""
        parts = split(batch, self.loop.micro)
        totals: dict[str, Tensor] = {}
        for i, part in enumerate(parts):
            with gradients(self.model, last=i == len(parts) - 1):
                with autocast(self.bf16, self.world.device):
                    loss, extras = self.task.loss(self.model, part, step)
                (loss if len(parts) == 1 else loss / len(parts)).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss, **extras}.items():
                share = value.detach() if len(parts) == 1 else value.detach() / len(parts)
                totals[name] = totals[name] + share if name in totals else share
        return totals

    @torch.no_grad()
    def evaluate(self, step: int) -> dict[str, float]:
        """The task's held-out metrics, averaged over processes."""
        model = self.ema.module if self.ema is not None else self.plain
        model.eval()
        with autocast(self.bf16, self.world.device):
            values = self.task.evaluate(model, step)
        release(model)
        return self.world.mean({name: float(value) for name, value in values.items()})

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        """The live tensors that make up a checkpoint, under the plain module's names."""
        averaged = {"ema": self.ema.module.state_dict()} if self.ema is not None else {}
        own = getattr(self.task, "parts", None)
        return {"model": self.plain.state_dict(), **averaged, "optim": self.optimiser.state(), **(own() if own else {})}

    def whole(self) -> dict[str, dict[str, Tensor]]:
        """Whole CPU copies of all parts on process 0. Every process must call it."""
        return {part: gather(tensors, self.world) for part, tensors in self._parts().items()}

    def restore(self, checkpoint: Path) -> None:
        """Fill all parts from a checkpoint, whatever number of processes wrote it."""
        parts = self._parts()
        files = self.world.on_main(lambda: _open(checkpoint, parts)) or {}
        for part, tensors in parts.items():
            scatter(tensors, files.get(part), self.world)


def _open(checkpoint: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensors]:
    files = {part: Tensors(checkpoint, part) for part in parts}
    for part, tensors in parts.items():
        files[part].expect(tensors)
    return files


def compile_in_place(model: nn.Module, *, by_block: bool) -> None:
    """torch.compile without changing a name: the network's body, or block by block where FSDP works between blocks.

    The body is `model.hidden` where there is one: the head and what a caller does with it differ from call to call,
    and would have the whole network compiled again for each of them.
    """
    blocks = list(getattr(model, "blocks", ())) if by_block else []
    hidden = getattr(model, "hidden", None)
    if not blocks and callable(hidden):
        setattr(model, "hidden", torch.compile(hidden))  # noqa: B010 (a method, not a parameter)
        return
    for module in blocks or [model]:
        module.compile()


def _wrap_body(model: nn.Module, around: Callable[[Any, nn.Module], Any]) -> None:
    """Put something around `model.hidden`, where there is one."""
    body: Any = getattr(model, "hidden", None)
    if callable(body):
        setattr(model, "hidden", around(body, model))  # noqa: B010 (a method, not a parameter)


def any_batch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn(*tensors)` compiled once for batches of every size: the first dimension of its inputs is left open."""
    inner = torch.compile(fn)

    def call(*inputs: Tensor | None) -> Any:
        for x in inputs:
            if x is not None:
                torch._dynamo.maybe_mark_dynamic(x, 0)
        return inner(*inputs)

    return call


def quicken(model: nn.Module, name: str, pool: Pool | None) -> None:
    """Compile method `name` of a frozen network that is called with batches of any size and, with a pool, record it."""
    if name in vars(model):  # done before, by a task that shares the network
        return
    fast = any_batch(getattr(model, name))
    setattr(model, name, fast if pool is None else Replayed(fast, model, pool))
