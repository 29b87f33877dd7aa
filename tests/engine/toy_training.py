"""A small task for the engine's tests: a denoiser with dropout, an embedding, norms and two blocks.

As a script it trains one or more runs given as JSON, alone or under torchrun, so that tests can kill it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tsdfm.engine.distributed import Processes, join
from tsdfm.engine.loop import fit
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Context, Record
from tsdfm.errors import UserError
from tsdfm.flow.noise import RowNoise
from tsdfm.settings import build

VOCAB, LENGTH, WIDTH = 11, 6, 16
LOOP = {"steps": 6, "batch": 8, "log_every": 2, "eval_every": 3, "save_every": 3, "device": "cpu", "keep": 10}
OPTIM = {"lr": 1e-2, "warmup": 2, "ema": 0.9}


@dataclass(frozen=True)
class Batch:
    tokens: Tensor
    rows: Tensor


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner, self.drop = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(F.gelu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, *, dropout: float = 0.0, vocab: int = VOCAB, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocab, WIDTH)
            self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
            self.head = nn.Linear(WIDTH, vocab)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        y: Tensor = self.embed(x)
        for block in self.blocks:
            y = block(y + y.mean(1, keepdim=True))
        return y

    def read(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.head(hidden)
        return out


class Denoise:
    """Guess the tokens of rows in which some were replaced; the noise comes from the row numbers."""

    def __init__(self, model: nn.Module, *, poison: tuple[int, ...] = (), semi: bool = False, pause: float = 0) -> None:
        self.model, self.poison, self.semi, self.pause = model, poison, semi, pause
        self.context: Context | None = None

    def bind(self, context: Context) -> None:
        self.context = context

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self.pause:
            time.sleep(self.pause)
        noise = RowNoise(3, batch.rows)
        keep = noise.uniform(batch.tokens.shape) < 0.7
        other = (noise.uniform(batch.tokens.shape) * VOCAB).long()
        x_t = torch.where(keep, batch.tokens, other)
        logits = model(x_t).float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten())
        if self.semi:  # the averaged model as a teacher, evaluated inside the loss
            assert self.context is not None
            assert self.context.ema is not None
            with torch.no_grad():
                target = self.context.ema(x_t).float()
            loss = loss + (logits - target).square().mean()
        if step in self.poison:
            loss = loss * float("nan")
        return loss, {"right": (logits.argmax(-1) == batch.tokens).float().mean()}

    def evaluate(self, model: nn.Module, step: int) -> dict[str, float]:
        assert not model.training
        tokens = rows_at(10_000, 4, 0, 1).tokens
        logits = model(tokens).float()
        return {"elbo": F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item(), "step_seen": float(step)}


def rows_at(step: int, batch: int, rank: int, world: int) -> Batch:
    """Rows of an arithmetic text, [b, L]: the row number decides start and stride."""
    share = batch // world
    rows = torch.arange(share) + step * batch + rank * share
    tokens = (rows[:, None] * 7 + (rows[:, None] % 3 + 1) * torch.arange(LENGTH)) % VOCAB
    return Batch(tokens, rows)


def feed(step: int, batch: int, world: Processes) -> Iterator[Batch]:
    while True:
        yield rows_at(step, batch, world.rank, world.size)
        step += 1


def train(out: Path, world: Processes, **given: Any) -> Path:
    """`fit` on the toy, with `loop`, `optim`, `task`, `net` and `resume` as overrides."""
    torch.set_num_threads(1)
    loop = build(LoopSettings, LOOP | given.get("loop", {}))
    optim = build(OptimSettings, OPTIM | given.get("optim", {}))
    task = given.get("made") or Denoise(Net(**given.get("net", {})), **given.get("task", {}))
    record = Record(stage="toy", settings=loop, inputs={k: Path(v) for k, v in given.get("inputs", {}).items()})
    return fit(
        task,
        lambda step: feed(step, loop.batch, world),
        world=world,
        loop=loop,
        optim=optim,
        out=out,
        record=record,
        resume=given.get("resume", False),
    )


def die_at(point: str, count: int) -> None:
    """Send this very process SIGKILL at the `count`-th arrival at a point of saving."""
    from tsdfm.store import checkpoint

    left = [count]

    def tick() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tick()
            return function(*args, **kwargs)

        return wrapped

    def half_file(tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"\x10\x00\x00")
        tick()
        real(tensors, path)

    real = checkpoint.save_file
    patches = {
        "file": ("save_file", half_file),
        "state": ("write_json", before(checkpoint.write_json)),
        "folder": ("sync_folder", before(checkpoint.sync_folder)),
        "delete": ("shutil", type("S", (), {"rmtree": staticmethod(before(checkpoint.shutil.rmtree))})),
    }
    name, value = patches[point]
    setattr(checkpoint, name, value)


def main() -> None:
    setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # noqa: B010 (what it traces, quickly)
    for job in json.loads(sys.argv[1]):
        if "die" in job:
            die_at(*job.pop("die"))
        with join("cpu") as world:
            try:
                train(Path(job.pop("out")), world, **job)
            except UserError as problem:
                print(f"error[{world.rank}]: {problem}", file=sys.stderr)
                sys.exit(2)


if __name__ == "__main__":
    main()
