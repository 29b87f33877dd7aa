"""IDLM's training step, with its auxiliary and its teacher: `python -m benchmarks matching`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from benchmarks.harness import Clock, Estimate, Ledger, Step, measure, random_spec, stepper, world
from tsdfm.distil.matching.settings import AuxiliarySettings
from tsdfm.distil.settings import StudentLoop
from tsdfm.engine.learner import Learner
from tsdfm.methods.idlm import METHOD, IDLMSettings
from tsdfm.nn.velocity import Velocity
from tsdfm.settings import option
from tsdfm.tokens.loader import HostBatch

Targets = Literal["dense", "drawn"]


@dataclass(frozen=True, kw_only=True)
class MatchingBenchmark:
    """What to time."""

    preset: str = option("170m", "size of student, auxiliary and teacher")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8, 16), "rows of a step")
    targets: tuple[Targets, ...] = option(("dense", "drawn"), "what the auxiliary learns")
    compile: bool = option(True, "torch.compile the networks")
    warm: int = option(8, "steps before timing")
    repeats: int = option(15, "timed steps")
    limit: float = option(300.0, "seconds at most: what does not fit is left out, and named")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: MatchingBenchmark) -> None:
    """Time the whole step at every batch size."""
    here, clock, cost = world(settings.device), Clock(settings.limit), Estimate(20.0)
    title = f"matching step: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    table = Ledger(title, ("batch", "targets"), here.device, settings.out and settings.out / "matching.json")
    for batch, targets in ((batch, targets) for batch in settings.batch for targets in settings.targets):
        if table.has((batch, targets)):
            continue
        if not clock.allows(cost.seconds, f"matching, batch {batch}, {targets}"):
            table.leave(f"batch {batch}, {targets}")
            continue
        with cost.taking():
            way = partial(build, settings, batch, targets)
            timing = measure({str(targets): way}, here.device, settings.warm, settings.repeats)
        for found in timing.values():
            row = {"batch": batch, "targets": targets, "ms": found.median, "fastest": found.low, "slowest": found.high}
            speed = int(batch * settings.length / found.median * 1e3)
            table.add([{**row, "tokens/s": speed, "peak GiB": found.peak}])
    table.show()


def build(settings: MatchingBenchmark, batch: int, targets: Targets) -> Step:
    here = world(settings.device)
    spec = random_spec(settings.preset, settings.vocab, settings.length)
    own = AuxiliarySettings(alone=0, dense=targets == "dense")
    loop = StudentLoop(batch=batch, compile=settings.compile)
    plan = IDLMSettings(tokens=Path(), init_from=Path(), out=Path(), loop=loop, auxiliary=own)
    net = spec.network().to(here.device).eval().requires_grad_(False)
    teacher = Velocity(spec, net, spec.flow_source(), spec.flow_schedule())
    task = METHOD.matching(plan, spec, None, here, teacher)
    learner = Learner(task, here, plan.loop, plan.optim)
    made = []
    for n in range(8):
        tokens = torch.randint(settings.vocab, (batch, settings.length), generator=torch.Generator().manual_seed(n))
        numbers = torch.arange(n * batch, (n + 1) * batch)
        made.append(HostBatch(tokens.to(here.device), numbers.to(here.device), numbers))
    return stepper(learner, made)
