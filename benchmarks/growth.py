"""How the cost of FS-DFM and TS-DFM steps grows with length, vocabulary and candidates: `python -m benchmarks growth`.

Every point is one learner, which takes blind and navigated steps in turn. Its networks are not compiled, as ten shapes
of three networks would take longer to compile than to time: their passes are recorded and replayed (CUDA graphs), so
that the host is not what is measured. `--compile true` compiles them all the same. The times are therefore above those
of `python -m benchmarks student`; what they are for is the growth, and the ratio.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Clock, Ledger, guarded, reserved, say, world
from benchmarks.student import StudentBenchmark, batches, label, learner_of, plan_of, told
from benchmarks.variants import Variants
from tsdfm.compass.model import Compass
from tsdfm.distil.navigated import NavigatedChain
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.task import StudentTask
from tsdfm.engine.graphs import GraphMemory, Replayed
from tsdfm.engine.learner import Learner
from tsdfm.engine.runner import wrapped
from tsdfm.settings import option


@dataclass(frozen=True, kw_only=True)
class GrowthBenchmark:
    """What to time. The first of each list is where the other lists are gone through."""

    preset: str = option("170m", "size of the student; the compass has half its blocks")
    lengths: tuple[int, ...] = option((1024, 256, 512, 2048), "tokens in a row")
    vocabs: tuple[int, ...] = option((50257, 8192, 32768, 128256), "|V|")
    ks: tuple[int, ...] = option((5, 1, 2, 3, 8), "candidates of a midpoint")
    rows: int = option(8, "rows of a step, where the length does not change them")
    tau: float = option(0.2, "τ of the navigated step")
    compile: bool = option(False, "torch.compile the networks: slower to start, and the times of a real training")
    graphs: bool = option(True, "replay recorded passes")
    warm: int = option(17, "steps before timing: every shape is met twice, and recorded")
    repeats: int = option(8, "timed steps of each variant")
    limit: float = option(300.0, "seconds at most: what does not fit is left out, and named")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


@dataclass(frozen=True)
class Point:
    """One shape of a step: what grows to it, its sizes, and the candidates that are timed there."""

    what: str
    rows: int
    length: int
    vocab: int
    ks: tuple[int, ...]

    @property
    def spot(self) -> str:
        return f"{self.what}: {self.rows} rows of {self.length}, |V| = {self.vocab}"

    def key(self, step: str) -> tuple[Any, ...]:
        """Of its row for a step."""
        return (self.what, self.rows, self.length, self.vocab, step)


def points(settings: GrowthBenchmark) -> list[Point]:
    """The centre with every K, the other vocabularies, then lengths at as many tokens and at as many rows."""
    length, vocab, rows = settings.lengths[0], settings.vocabs[0], settings.rows
    k = settings.ks[:1]
    made = [Point("K", rows, length, vocab, settings.ks)]
    made += [Point("|V|", rows, length, other, k) for other in settings.vocabs[1:]]
    made += [Point("length, same tokens", max(1, rows * length // l), l, vocab, k) for l in settings.lengths[1:]]
    return made + [Point("length, same rows", rows, l, vocab, k) for l in settings.lengths[1:]]


def run(settings: GrowthBenchmark) -> None:
    """Time every point that was not timed before and for which there is time."""
    device, clock, cost = world(settings.device).device, Clock(settings.limit), 10.0
    how = "compiled" if settings.compile else "not compiled"
    title = f"growth of the student step: {settings.preset}, τ = {settings.tau}, {how}"
    names = ("grows", "rows", "length", "|V|", "step")
    table = Ledger(title, names, device, settings.out and settings.out / "growth.json")
    for point in points(settings):
        steps = [None, *(NavigateSettings(tau=settings.tau, k=k) for k in point.ks)]
        if table.has(*(point.key(label(step)) for step in steps)):
            continue
        if not clock.allows(cost, point.spot):
            table.leave(point.spot)
            continue
        start = time.perf_counter()
        cost = guarded(point.spot, partial(compare, settings, point, steps, clock, table)) or cost
        say(f"  {point.spot}: {time.perf_counter() - start:.0f} s")
    table.show()


def compare(
    settings: GrowthBenchmark, point: Point, plans: list[NavigateSettings | None], clock: Clock, table: Ledger
) -> float:
    """Put the rows of one point into the table: its blind and its navigated steps, as many as there is time for, taking
    turns. Gives the seconds that another point will take, about."""
    device, begun = table.device, time.perf_counter()
    sizes: dict[str, Any] = {"preset": settings.preset, "vocab": point.vocab, "length": point.length}
    sizes |= {"compile": settings.compile, "graphs": settings.graphs, "device": settings.device}
    shape = StudentBenchmark(**sizes)
    first = plan_of(shape, point.rows, next(plan for plan in plans if plan is not None))
    pool = GraphMemory() if settings.graphs and not settings.compile and device.type == "cuda" else None
    held, learner = reserved(device), learner_of(shape, first, pool)
    if pool is not None:
        record_compass(learner, pool)
    rows = batches(shape, point.rows, device)
    made = Variants(device, clock, settings.warm, settings.repeats, begun=begun)
    # after the two that go together, first what an earlier run had no time for
    for plan in [*plans[:2], *sorted(plans[2:], key=lambda plan: table.has(point.key(label(plan))))]:
        if plan is None or made.fits(label(plan)):
            made.build(label(plan), partial(told, learner, plan_of(shape, point.rows, plan), rows), held)
    medians = {name: statistics.median(t) for name, t in made.times(settings.repeats, 100).items()}
    where = dict(zip(table.names, point.key(""), strict=True))
    blind = medians.get(label(None))
    table.add(
        [
            {
                **where,
                "step": name,
                "ms": ms,
                "to fs-dfm": ms / blind if blind else None,
                "µs a token": ms * 1e3 / (point.rows * point.length),
                "peak GiB": made.peaks[name],
            }
            for name, ms in medians.items()
        ]
    )
    for name in made.left:
        if not table.has(point.key(name)):
            table.leave(f"{point.spot}: {name}")
    return made.cost_of_a_pair()


def record_compass(learner: Learner, pool: GraphMemory) -> None:
    """Let the compass's passes be replayed too, although it is not compiled."""
    task = learner.task
    assert isinstance(task, StudentTask)
    rollout = task.rollout
    if isinstance(rollout, NavigatedChain) and isinstance(rollout.compass, Compass):
        net = rollout.compass.net
        rollout.compass = replace(rollout.compass, net=wrapped(net, Replayed(net.forward, net, pool)))
