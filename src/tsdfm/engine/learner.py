"""Everything a training step changes: the model, its average and the optimiser, on one process or many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.engine.distributed import Processes, broadcast_weights, gradients, release, shard, wrap
from tsdfm.engine.ema import Ema
from tsdfm.engine.gather import gather, scatter
from tsdfm.engine.graphs import GraphMemory, Replayed, Trained
from tsdfm.engine.optim import Optimiser, lr_at
from tsdfm.engine.precision import autocast, seed_step, use_bf16
from tsdfm.engine.runner import Compiled, body_of, compile_blocks, has_end, wrapped
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Binds, Context, Task, split
from tsdfm.store.checkpoint import Tensors


class Learner:
    """Places `task.model` on its device, copies it for the average, compiles, wraps, and makes the optimiser.

    plain     the network itself, whose weights are trained and saved
    runner    the same as it is called: compiled, recorded, or itself
    model     what the task's loss calls: the runner, or DDP around it
    average   the moving average as it is called

    With a `pool` passes are recorded in any case; without one where the settings ask for it.
    """

    def __init__(
        self, task: Task, world: Processes, loop: LoopSettings, optim: OptimSettings, *, pool: GraphMemory | None = None
    ) -> None:
        self.task, self.world, self.loop, self.optim = task, world, loop, optim
        self.bf16 = use_bf16(loop.precision, world.device)
        self.plain = task.model.to(world.device)
        broadcast_weights(self.plain, world)
        self.ema = Ema(self.plain, optim.ema, warmup=optim.ema_warmup) if optim.ema > 0 else None
        self.sharded = world.size > 1 and loop.parallel == "fsdp"
        if pool is None and loop.compile and loop.graphs and world.device.type == "cuda" and not self.sharded:
            pool = GraphMemory()
        self.pool = pool
        self.runner = self._runner(self.plain, Trained if world.size == 1 and loop.micro is None else None)
        self.average = self._runner(self.ema.module, Replayed) if self.ema is not None else None
        self.model = wrap(self.runner, world, loop.parallel, bf16=self.bf16)
        if self.ema is not None:
            if self.sharded:
                shard(self.ema.module, world, bf16=self.bf16, hold_root=False)
            self.ema.follow(self.plain)
        self.optimiser = Optimiser(self.plain, optim)
        dropouts = (m for m in self.plain.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
        self.random = any(m.p > 0 for m in dropouts)  # else nothing draws from torch's own generator
        if isinstance(task, Binds):
            further = partial(self._runner, recording=Replayed)
            task.bind(Context(self.average, world, graphs=self.pool, runner=further, optimiser=self.optimiser))

    def _runner(self, net: nn.Module, recording: type[Replayed | Trained] | None) -> nn.Module:
        """The network as it is called: compiled, and recorded (`engine.graphs`) where it has a head besides its body.

        With several processes the trained one is not recorded: DDP's own work belongs between its launches. A sharded
        one is called as it is, since FSDP works when the network and its blocks are.
        """
        if self.sharded:
            if self.loop.compile:
                compile_blocks(net)
            return net
        body = own = body_of(net)
        if self.loop.compile:
            body = Compiled(body, "each" if self.world.device.type == "cuda" and has_end(net) else "auto")
        if self.pool is not None and recording is not None and has_end(net):
            body = recording(body, net, self.pool)
        return net if body is own else wrapped(net, body)

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
                if loss.requires_grad:
                    (loss if len(parts) == 1 else loss / len(parts)).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss, **extras}.items():
                share = value.detach() if len(parts) == 1 else value.detach() / len(parts)
                totals[name] = totals[name] + share if name in totals else share
        return totals

    @torch.no_grad()
    def evaluate(self, step: int) -> dict[str, float]:
        """The task's held-out metrics, averaged over processes."""
        model = self.average if self.average is not None else self.runner
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
