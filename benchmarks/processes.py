"""A training on many processes that goes on with fewer is the training of one: `python -m benchmarks processes`.

One process trains a toy network for all steps. Then `first` processes (gloo) train for half of them, and
`then` processes resume and train the rest. Each process notes of every row that it trains on its running number, a hash
of its tokens, its time and a hash of its noised state x_t. Compared are:

- rows and noise, which must be the same bits, every row of every step exactly once;
- losses and final weights, which may differ by the order of float32 sums.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import say
from tsdfm.errors import UserError
from tsdfm.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class ProcessBenchmark(Settings):
    """How many processes, and for how long."""

    first: int = option(64, "processes that begin", low=1)
    then: int = option(48, "processes that go on", low=1)
    batch: int = option(192, "rows of a step; both numbers of processes divide it", low=1)
    steps: int = option(6, "steps in all; half of them by the first", low=2)
    seed: int = option(0, "of the texts, the weights, the order and the noise")


class Seen(NamedTuple):
    """What a process noted of a row: the step, its running number, its tokens, its time and x_t."""

    step: int
    row: int
    tokens: str
    time: float
    state: str


class Outcome(NamedTuple):
    """Rows that were noted, the largest relative difference of a loss, and the largest difference of a weight."""

    rows: int
    loss: float
    weight: float


def run(settings: ProcessBenchmark) -> None:
    """Train three times, compare, say what came out."""
    with tempfile.TemporaryDirectory(prefix="tsdfm-processes-") as home:
        folder = Path(home)
        tokens = make_rows(folder, settings.seed)
        for name, world, steps in plan(settings):
            began = time.perf_counter()
            launch(world, job(settings, tokens, folder / name, steps))
            say(f"{world} processes up to step {steps}: {time.perf_counter() - began:.0f} s")
        found = compare(settings, folder)
    say(f"{found.rows} rows over {settings.steps} steps: the same rows and the same noise, to the bit")
    say(f"losses differ by at most {found.loss:.1e} of themselves, weights by at most {found.weight:.1e}")


def plan(settings: ProcessBenchmark) -> list[tuple[str, int, int]]:
    """The trainings: folder, processes, and the step they end at."""
    half = settings.steps // 2
    return [("one", 1, settings.steps), ("many", settings.first, half), ("many", settings.then, settings.steps)]


def make_rows(folder: Path, seed: int) -> Path:
    """Stories as rows of tokens."""
    from tsdfm.corpus import CorpusSettings
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.tokens import TokensSettings
    from tsdfm.tokens.run import run as make_tokens

    corpus = CorpusSettings(name="world:small", limit=400, seed=seed, out=folder / "corpus", valid=0)
    return make_tokens(TokensSettings(corpus=make_corpus(corpus), tokenizer="byte", length=32, out=folder / "tokens"))


def job(settings: ProcessBenchmark, tokens: Path, out: Path, steps: int) -> str:
    """What each process is told, as JSON."""
    told = {"tokens": str(tokens), "out": str(out), "batch": settings.batch, "steps": steps, "seed": settings.seed}
    return json.dumps(told)


def launch(world: int, told: str, server: ForkServerContext | None = None) -> None:
    """Train on `world` processes with the environment that torchrun gives its own.

    A server that has torch loaded and only one thread forks them. They share its memory, and none of them is born with
    a lock that a thread of its parent held, as may happen to those that torchrun forks.
    """
    if server is None:
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["torch.distributed.fsdp", "tsdfm.methods.dfm", "tsdfm.teacher.run"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work = [server.Process(target=be_one, args=(rank, world, port, told)) for rank in range(world)]
    for process in work:
        process.start()
    for process in work:
        process.join()
    if codes := {process.exitcode for process in work if process.exitcode}:
        raise UserError(f"the training on {world} processes failed with code {min(map(str, codes))}")


def be_one(rank: int, world: int, port: int, told: str) -> None:
    """One process of several."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), **place})
    train(told)


def train(told: str) -> None:
    """What each process does: train, and note rows and noise."""
    import torch

    from tsdfm.engine.launch import torchrun_says
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods import method
    from tsdfm.methods.dfm import DFMSettings
    from tsdfm.nn.settings import NetSettings

    given = json.loads(told)
    torch.set_num_threads(1)
    out, (rank, size, _) = Path(given["out"]), torchrun_says()
    notes = out.with_name(f"{out.name}-notes")
    notes.mkdir(exist_ok=True)
    note_rows(notes / f"{given['steps']}-{size}-{rank}.jsonl")
    method("dfm").train(
        DFMSettings(
            tokens=Path(given["tokens"]),
            out=out,
            net=NetSettings(width=16, depth=1, heads=2, cond=8, dropout=0.0),
            loop=LoopSettings(
                steps=given["steps"], batch=given["batch"], seed=given["seed"], device="cpu", log_every=1, eval_every=0
            ),
            optim=OptimSettings(lr=1e-2, warmup=0, floor=1.0),  # a rate that does not depend on the number of steps
            resume=True,
        )
    )


def note_rows(path: Path) -> None:
    """From now on, note in a file what this process trains on."""
    from tsdfm.teacher import task as module

    task: Any = module
    whole, interpolate = task.TeacherTask.whole, task.interpolate
    now: list[Any] = []

    def noting(self: Any, model: Any, batch: Any, step: int) -> Any:
        now[:] = [step, batch.rows]
        return whole(self, model, batch, step)

    def between(x_0: Any, x_1: Any, t: Any, *more: Any) -> Any:
        x_t = interpolate(x_0, x_1, t, *more)
        step, rows = now
        with path.open("a") as file:
            for n, x, when, z in zip(rows.tolist(), x_1, t.tolist(), x_t, strict=True):
                file.write(json.dumps(Seen(step, n, digest(x), when, digest(z))) + "\n")
        return x_t

    task.TeacherTask.whole, task.interpolate = noting, between


def digest(row: Any) -> str:
    """A hash of a row's numbers."""
    return hashlib.blake2b(row.numpy().tobytes(), digest_size=12).hexdigest()


def compare(settings: ProcessBenchmark, folder: Path) -> Outcome:
    """Refuse rows or noise that are not the same; how far losses and weights are apart."""
    from tsdfm.engine.log import read_metrics
    from tsdfm.store.checkpoint import Store, load_weights

    one, many = (sorted(noted(folder / f"{name}-notes")) for name in ("one", "many"))
    files = len([*(folder / "many-notes").iterdir()])
    if one != many or len(one) != settings.batch * settings.steps or files != settings.first + settings.then:
        raise UserError(f"rows or noise differ: {len(set(one) ^ set(many))} of {len(one)} rows, {files} processes")
    losses = [[line["loss"] for line in read_metrics(folder / name, "train")] for name in ("one", "many")]
    worst = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
    first, second = (load_weights(Store(folder / name).at(settings.steps), "model") for name in ("one", "many"))
    apart = max(float((first[name] - second[name]).abs().max()) for name in first)
    return Outcome(len(one), worst, apart)


def noted(folder: Path) -> list[Seen]:
    """What all processes of a run noted."""
    return [Seen(*json.loads(line)) for path in folder.iterdir() for line in path.read_text().splitlines()]
