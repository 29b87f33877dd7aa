"""The teacher's training step: `python -m benchmarks teacher`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import Clock, Estimate, Ledger, Step, measure, random_spec, stepper, world
from tsdfm.engine.learner import Learner
from tsdfm.engine.settings import LoopSettings
from tsdfm.methods.dfm import METHOD, DFMSettings
from tsdfm.settings import option
from tsdfm.tokens.loader import Batch


@dataclass(frozen=True, kw_only=True)
class TeacherBenchmark:
    """What to time."""

    preset: str = option("170m", "size of the teacher")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8, 16, 32), "rows of a step")
    compile: bool = option(True, "torch.compile the network")
    warm: int = option(6, "steps before timing")
    repeats: int = option(15, "timed steps")
    limit: float = option(300.0, "seconds at most: what does not fit is left out, and named")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: TeacherBenchmark) -> None:
    """Time the whole step at every batch size."""
    here, clock, cost = world(settings.device), Clock(settings.limit), Estimate(10.0)
    title = f"teacher step: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    table = Ledger(title, ("batch",), here.device, settings.out and settings.out / "teacher.json")
    for batch in settings.batch:
        if table.has((batch,)):
            continue
        if not clock.allows(cost.seconds, f"teacher, batch {batch}"):
            table.leave(f"batch {batch}")
            continue
        with cost.taking():
            timing = measure({"teacher": partial(build, settings, batch)}, here.device, settings.warm, settings.repeats)
        for found in timing.values():
            row = {"batch": batch, "ms": found.median, "fastest": found.low, "slowest": found.high}
            speed = int(batch * settings.length / found.median * 1e3)
            table.add([{**row, "tokens/s": speed, "peak GiB": found.peak}])
    table.show()


def build(settings: TeacherBenchmark, batch: int) -> Step:
    here = world(settings.device)
    spec = random_spec(settings.preset, settings.vocab, settings.length)
    plan = DFMSettings(tokens=Path(), out=Path(), loop=LoopSettings(batch=batch, compile=settings.compile))
    learner = Learner(METHOD.task(plan, spec, None), here, plan.loop, plan.optim)
    made = []
    for n in range(8):
        tokens = torch.randint(settings.vocab, (batch, settings.length), generator=torch.Generator().manual_seed(n))
        numbers = torch.arange(n * batch, (n + 1) * batch)
        made.append(Batch(tokens.to(here.device), numbers.to(here.device)))
    return stepper(learner, made)
