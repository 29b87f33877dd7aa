"""What every stage that trains on rows of tokens does alike: begin or go on, feed, fit, and share out held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from tsdfm.engine.distributed import Processes
from tsdfm.engine.loop import fit
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Record, Task
from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.tokens.loader import Loader, prefetch
from tsdfm.tokens.rows import TokenRows

Feeder = Callable[[Loader, int, torch.device, int], Iterator[Any]]
"""(loader, first step, device, step to stop before) → batches."""


class Training(Protocol):
    """The settings of a stage that trains."""

    @property
    def out(self) -> Path: ...
    @property
    def loop(self) -> LoopSettings: ...
    @property
    def optim(self) -> OptimSettings: ...
    @property
    def resume(self) -> bool: ...


def train_rows(
    task: Task,
    rows: TokenRows,
    settings: Training,
    record: Record,
    world: Processes,
    *,
    begin: Callable[[], None] | None = None,
    feeder: Feeder = prefetch,
) -> Path:
    """Train `task` on `rows` and return the run folder. `begin` sets the weights of step 0, in a new run only.

    Rows with a prompt need a task that leaves it alone (`task.prompts`).
    """
    if rows.prompted and not getattr(task, "prompts", False):
        raise UserError(
            f"{record.stage} would learn the prompts in {rows.folder}: use tokens of layout document or packed"
        )
    loop = settings.loop
    share = loop.batch // world.size
    needed, told = 16 * share * rows.length, f"a batch of {share:,} rows of {rows.length:,} tokens"
    if world.device.type == "cpu":  # where all logits of a forward are made at once
        needed += 8 * min(loop.micro or share, share) * rows.length * rows.vocab_size
    check_memory(needed, told, "lower loop.batch" + ("" if getattr(task, "whole", False) else ", or set loop.micro"))

    loader = Loader(rows, loop.batch, loop.seed, world.rank, world.size)
    fit(
        task,
        lambda step: feeder(loader, step, world.device, loop.steps),
        world=world,
        loop=loop,
        optim=settings.optim,
        out=settings.out,
        record=record,
        resume=settings.resume,
        begin=begin,
        beside=lambda: rows.tokenizer.save(settings.out / "tokenizer"),
    )
    return settings.out


def held_out_parts(
    valid: TokenRows, wanted: int, loop: LoopSettings, world: Processes
) -> tuple[list[int], list[list[int]]]:
    """The held-out rows an evaluation looks at, and this process's share of them in parts of one call.

    They are spread evenly over the split, whose neighbours are of one document. Every process calls the model equally
    often: where there are fewer rows than processes, some look at a row again.
    """
    count = min(wanted, len(valid))
    count -= count % world.size if count >= world.size else 0
    rows = [i * len(valid) // count for i in range(count)]
    mine = [rows[i % count] for i in range(world.rank, max(count, world.size), world.size)]
    size = max(1, (loop.micro or loop.batch // world.size))
    return rows, [mine[first : first + size] for first in range(0, len(mine), size)]
