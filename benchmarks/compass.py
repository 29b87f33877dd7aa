"""The compass's training step, and what share of it making negatives takes: `python -m benchmarks compass`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import measure, milliseconds, random_spec, report, stepper, world
from tsdfm.compass.frequency import frequency_bins
from tsdfm.compass.negatives import Kit, Negatives
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassLoop, CompassNet, CompassSettings
from tsdfm.compass.task import CompassTask
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import autocast
from tsdfm.nn.velocity import Velocity
from tsdfm.settings import option
from tsdfm.tokens.loader import Batch


@dataclass(frozen=True, kw_only=True)
class CompassBenchmark:
    """What to time."""

    preset: str = option("170m", "size of the teacher; the compass has half its blocks (86M at 170m)")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: int = option(8, "positives of a step, each with its negatives")
    compile: bool = option(True, "torch.compile the compass")
    warm: int = option(10, "steps before timing")
    repeats: int = option(15, "timed steps")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "also write the rows as JSON")


def run(settings: CompassBenchmark) -> None:
    """Time the whole step, and the making of its states alone."""
    here = world(settings.device)
    torch.manual_seed(0)
    spec = random_spec(settings.preset, settings.vocab, settings.length)
    teacher = Velocity(spec, spec.network().to(here.device).eval(), spec.flow_source(), spec.flow_schedule())
    plan = CompassSettings(
        tokens=Path(),
        teacher=Path(),
        out=Path(),
        net=CompassNet(preset=settings.preset),
        loop=CompassLoop(batch=settings.batch, compile=settings.compile),
    )
    counts = (1e7 / np.arange(1, settings.vocab + 1)).astype(np.int64)  # a Zipf law
    bins = frequency_bins(counts, plan.corrupt.bins).to(here.device)
    about = spec_from(spec, plan.net.shape(), "nce")
    negatives = Negatives(Kit(about.flow_source(), bins, plan.corrupt, teacher, plan.t_floor))
    task = CompassTask(plan, about, negatives, None, here)
    batches = [
        Batch(
            torch.randint(settings.vocab, (settings.batch, settings.length), device=here.device),
            torch.arange(n * settings.batch, (n + 1) * settings.batch, device=here.device),
        )
        for n in range(8)
    ]
    learner = Learner(task, here, plan.loop, plan.optim)
    whole = measure({"step": lambda: stepper(learner, batches)}, here.device, settings.warm, settings.repeats)["step"]
    with torch.no_grad(), autocast(learner.bf16, here.device):  # as in the step, where the teacher runs in bf16 too
        alone = [milliseconds(lambda n: task.states(batches[n % 8]), n, here.device) for n in range(settings.repeats)]
    making = statistics.median(alone[2:])
    row = {
        "batch": settings.batch,
        "states of a positive": plan.negatives + 2,
        "step ms": whole.median,
        "positives/s": settings.batch / whole.median * 1e3,
        "tokens/s": int(settings.batch * (plan.negatives + 2) * settings.length / whole.median * 1e3),
        "making states ms": making,
        "share": making / whole.median,
        "peak GiB": whole.peak,
    }
    parameters = sum(p.numel() for p in task.model.parameters()) / 1e6
    report(f"compass step: {parameters:.1f}M, |V| = {settings.vocab}", [row], here.device, settings.out)
