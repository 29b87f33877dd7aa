"""The compass's training step, and what share of it making negatives takes: `python -m benchmarks compass`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Clock, Estimate, Ledger, guarded, measure, milliseconds, random_spec, stepper, world
from benchmarks.student import batches as random_batches
from tsdfm.compass.frequency import frequency_bins
from tsdfm.compass.negatives import Kit, Negatives
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassLoop, CompassNet, CompassSettings
from tsdfm.compass.task import CompassTask
from tsdfm.engine.distributed import Processes
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import autocast
from tsdfm.nn.velocity import Velocity
from tsdfm.settings import option
from tsdfm.tokens.loader import HostBatch


@dataclass(frozen=True, kw_only=True)
class CompassBenchmark:
    """What to time."""

    preset: str = option("170m", "size of the teacher; the compass has half its blocks (86M at 170m)")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8, 16, 32), "positives of a step, each with its negatives")
    compile: bool = option(True, "torch.compile the compass")
    warm: int = option(10, "steps before timing")
    repeats: int = option(15, "timed steps")
    limit: float = option(300.0, "seconds at most: what does not fit is left out, and named")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: CompassBenchmark) -> None:
    """Time the whole step at every batch size, and the making of its states alone."""
    here, clock, cost = world(settings.device), Clock(settings.limit), Estimate(15.0)
    title = f"compass step: half a {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    table = Ledger(title, ("batch",), here.device, settings.out and settings.out / "compass.json")
    for batch in settings.batch:
        if table.has((batch,)):
            continue
        if not clock.allows(cost.seconds, f"compass, batch {batch}"):
            table.leave(f"batch {batch}")
            continue
        with cost.taking():
            row = guarded(f"compass, batch {batch}", partial(one, settings, batch, here))
        if row is not None:
            table.add([row])
    table.show()


def one(settings: CompassBenchmark, batch: int, here: Processes) -> dict[str, Any] | None:
    """A row of the table."""
    learner, task, batches = build(settings, batch, here)
    timings = measure({"step": lambda: stepper(learner, batches)}, here.device, settings.warm, settings.repeats)
    if "step" not in timings:
        return None
    whole, count = timings["step"], task.settings.negatives + 2

    def states() -> float:
        with torch.no_grad(), autocast(learner.bf16, here.device):  # as in the step, where the teacher runs in bf16 too
            alone = [
                milliseconds(lambda n: task.states(batches[n % 8]), n, here.device) for n in range(settings.repeats)
            ]
        return statistics.median(alone[2:] or alone)

    making = guarded(f"making states, batch {batch}", states)
    return {
        "batch": batch,
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "states of a positive": count,
        "step ms": whole.median,
        "fastest": whole.low,
        "slowest": whole.high,
        "positives/s": batch / whole.median * 1e3,
        "tokens/s": int(batch * count * settings.length / whole.median * 1e3),
        "making states ms": making,
        "share": making and making / whole.median,
        "peak GiB": whole.peak,
    }


def build(settings: CompassBenchmark, batch: int, here: Processes) -> tuple[Learner, CompassTask, list[HostBatch]]:
    """A compass in training, with random tokens whose frequencies the bins take for a Zipf law."""
    torch.manual_seed(0)
    spec = random_spec(settings.preset, settings.vocab, settings.length)
    teacher = Velocity(spec, spec.network().to(here.device).eval(), spec.flow_source(), spec.flow_schedule())
    plan = CompassSettings(
        tokens=Path(),
        teacher=Path(),
        out=Path(),
        net=CompassNet(preset=settings.preset),
        loop=CompassLoop(batch=batch, compile=settings.compile),
    )
    counts = (1e7 / np.arange(1, settings.vocab + 1)).astype(np.int64)
    bins = frequency_bins(counts, plan.corrupt.bins).to(here.device)
    about = spec_from(spec, plan.net.shape(), "nce")
    negatives = Negatives(Kit(about.flow_source(), bins, plan.corrupt, teacher, plan.t_floor))
    task = CompassTask(plan, about, negatives, None, here)
    return Learner(task, here, plan.loop, plan.optim), task, random_batches(settings, batch, here.device)
