"""Shuffled batches from shards in the page cache, tokens a second: `python -m benchmarks loader`.

Random tokens are written as nanoGPT's files and taken by the tokens stage as they are. Then 1, 2, … processes read them
side by side, each its share of every batch, as the ranks of a training on one host do. Afterwards a loader that has
read nothing before makes some of the same steps, and must give the same bits: that is what resuming is.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import say
from tsdfm.errors import UserError
from tsdfm.settings import Settings, option
from tsdfm.store.files import write_json
from tsdfm.tokens.encode import cores
from tsdfm.tokens.loader import Loader, prefetch
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

FIRST = 1000  # step that is measured first


@dataclass(frozen=True, kw_only=True)
class LoaderBenchmark(Settings):
    """What is read, and by how many."""

    tokens: int = option(400_000_000, "tokens in all shards, two bytes each", low=1000)
    shards: int = option(40, "files", low=1)
    length: int = option(1024, "tokens in a row", low=1)
    batch: int = option(512, "rows of a step, over all processes", low=1)
    workers: tuple[int, ...] = option((1, 2, 4, 8), "processes that read side by side", low=1)
    seconds: float = option(3.0, "how long each number of processes is measured", above=0)
    seed: int = option(0, "of the tokens and of the order")
    out: Path | None = option(None, "file for the figures as JSON")


def run(settings: LoaderBenchmark) -> None:
    """Write, read, compare."""
    with tempfile.TemporaryDirectory(prefix="tsdfm-loader-") as home:
        began = time.perf_counter()
        folder = make(settings, Path(home))
        taken = settings.tokens / (time.perf_counter() - began)
        say(
            f"{settings.tokens:,} tokens in {settings.shards} files; written and checked at {taken / 1e6:.0f}M a second"
        )
        rows = []
        for world in settings.workers:
            if settings.batch % world:
                raise UserError(f"batch {settings.batch} does not divide by {world} processes")
            speeds = side_by_side(settings, folder, world)
            busy = min(world, cores())
            rows.append({"processes": world, "tokens_per_second": sum(speeds), "per_core": sum(speeds) / busy})
            say(
                f"processes {world}, cores {busy}: {sum(speeds) / 1e6:.1f}M tokens a second, "
                f"{sum(speeds) / busy / 1e6:.1f}M a core; resumed steps have the same bits"
            )
    if settings.out is not None:
        write_json(settings.out, {"cores": cores(), "checked_per_second": taken, "rows": rows})


def make(settings: LoaderBenchmark, home: Path) -> Path:
    """Shards of random bytes as tokens, and the folder that names them."""
    rng, each = np.random.default_rng(settings.seed), settings.tokens // settings.shards
    (home / "shards").mkdir()
    for number in range(settings.shards):
        rng.integers(0, 256, each, dtype=np.uint16).tofile(home / "shards" / f"{number:05d}.bin")
    taken = TokensSettings(shards=home / "shards", tokenizer="byte", length=settings.length, out=home / "tokens")
    return make_tokens(taken)


def side_by_side(settings: LoaderBenchmark, folder: Path, world: int) -> list[float]:
    """Tokens a second of each of `world` processes that read at the same time."""
    context = multiprocessing.get_context("spawn")
    gate, found = context.Barrier(world), context.Queue()
    work = [context.Process(target=read, args=(settings, folder, rank, world, gate, found)) for rank in range(world)]
    for process in work:
        process.start()
    answers = [found.get(timeout=600) for _ in work]
    for process in work:
        process.join()
    if wrong := [answer for answer in answers if isinstance(answer, str)]:
        raise UserError(f"a process failed: {wrong[0]}")
    return answers


def read(settings: LoaderBenchmark, folder: Path, rank: int, world: int, gate: Any, found: Any) -> None:
    """One process: its speed, or what went wrong."""
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        rows = TokenRows(folder)
        loader = Loader(rows, settings.batch, settings.seed, rank, world)
        for step in range(5):
            loader.at(step)
        gate.wait(timeout=600)
        began, kept, step = time.perf_counter(), {}, FIRST
        with prefetch(loader, FIRST, "cpu") as batches:
            for step, batch in enumerate(batches, FIRST):
                if step % 50 == 0:
                    kept[step] = batch
                if time.perf_counter() - began > settings.seconds:
                    break
        speed = (step + 1 - FIRST) * loader.share * rows.length / (time.perf_counter() - began)
        for at, batch in [*kept.items()][-3:]:
            again = Loader(TokenRows(folder), settings.batch, settings.seed, rank, world).at(at)
            if not (again.tokens.equal(batch.tokens) and again.rows.equal(batch.rows)):
                raise ValueError(f"step {at} is another when it is resumed")
        found.put(speed)
    except Exception as problem:  # the parent says it
        gate.abort()
        found.put(f"{type(problem).__name__}: {problem}")
