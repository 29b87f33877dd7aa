"""The distillation step, blind (FS-DFM) against navigated (TS-DFM): `python -m benchmarks student`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch

from benchmarks.agreement import same_bits, same_targets
from benchmarks.harness import (
    Clock,
    Estimate,
    Ledger,
    Step,
    graphs,
    guarded,
    host_alone,
    in_a_row,
    random_spec,
    reserved,
    say,
    world,
)
from benchmarks.profile import summarise
from benchmarks.variants import Variants
from tsdfm import kernels
from tsdfm.compass.model import Compass
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassNet
from tsdfm.distil.chain import Chain
from tsdfm.distil.floor import FromData
from tsdfm.distil.navigated import NavigatedChain
from tsdfm.distil.parts import Parts
from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
from tsdfm.distil.task import StudentTask
from tsdfm.distil.teachers import Average
from tsdfm.engine import graphs as engine_graphs
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import use_bf16
from tsdfm.flow import FLOW_BOUND
from tsdfm.methods.fs_dfm import METHOD as FS_DFM
from tsdfm.methods.fs_dfm import FSDFMSettings
from tsdfm.methods.ts_dfm import TSDFMSettings
from tsdfm.settings import option
from tsdfm.tokens.loader import HostBatch

Switch = Literal["record"]
"""Settings of a student that are off by default and change no result: the step may be timed with them on."""


@dataclass(frozen=True, kw_only=True)
class StudentBenchmark:
    """What to time."""

    preset: str = option("170m", "size of the student; the compass has half its blocks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8, 16, 32), "rows of a step; the first of each list is the centre of the star")
    tau: tuple[float, ...] = option((0.2, 0.02, 0.4), "τ of the navigated step")
    k: tuple[int, ...] = option((5, 2, 8), "candidates of a midpoint")
    grid: Literal["star", "full"] = option("star", "one dial off its centre at a time, or every combination")
    share: float | None = option(None, "share of rows with RK-4; none is what the weights of h say, a half")
    reference: bool = option(False, "also time the same steps with torch's own operations instead of kernels")
    profile: bool = option(False, "show where the time goes")
    switch: tuple[Switch, ...] = option((), "settings of the student that it is also timed with, switched on")
    compile: bool = option(True, "torch.compile the networks")
    graphs: bool = option(True, "replay recorded passes")
    warm: int = option(18, "steps before timing: every shape is met twice, and recorded")
    repeats: int = option(20, "timed steps of each variant")
    limit: float = option(600.0, "seconds at most: what does not fit is left out, and named")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


Plans = list[NavigateSettings | None]
"""What is timed side by side at one batch size; None is the blind step."""


def groups(settings: StudentBenchmark) -> dict[int, Plans]:
    """Batch size → steps that are timed in turn: the blind one and the navigated ones of the star, or of the grid."""
    middle = (settings.tau[0], settings.k[0])
    made: dict[int, Plans] = {}
    for batch in settings.batch:
        pairs = [(tau, k) for tau in settings.tau for k in settings.k]
        if settings.grid == "star":
            free = 1 if batch == settings.batch[0] else 0
            pairs = [p for p in pairs if (p[0] != middle[0]) + (p[1] != middle[1]) <= free]
        pairs.sort(key=lambda pair: pair != middle)  # the centre first: its memory is measured before the others' is
        made[batch] = [None, *(NavigateSettings(tau=tau, k=k) for tau, k in pairs)]
    return made


def label(navigate: NavigateSettings | None) -> str:
    return "fs-dfm" if navigate is None else f"ts-dfm τ={navigate.tau} K={navigate.k}"


def run(settings: StudentBenchmark) -> None:
    """Time every group; one that was measured before (in `out`) is not measured again."""
    torch._dynamo.config.cache_size_limit = 64  # several learners in one process: past 8 it would run uncompiled
    device, clock, cost = world(settings.device).device, Clock(settings.limit), 20.0
    title = f"student step: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    table = Ledger(title, ("batch", "step"), device, settings.out and settings.out / "student.json")
    for batch, plans in groups(settings).items():
        more = [f"{label(plan)}, {switch}" for switch in settings.switch for plan in plans[:2]]
        if table.has(*((batch, name) for name in [*map(label, plans), *more])):
            continue
        if not clock.allows(cost, f"student, batch {batch}"):
            table.leave(f"batch {batch}: " + ", ".join(map(label, plans)))
            continue
        # after the two that go together, first what an earlier run had no time for
        plans[2:] = sorted(plans[2:], key=lambda plan: table.has((batch, label(plan))))
        cost = guarded(f"student, batch {batch}", partial(compare, settings, batch, plans, clock, table)) or cost
    table.show()


def compare(settings: StudentBenchmark, batch: int, plans: Plans, clock: Clock, table: Ledger) -> float:
    """Build while there is time, time in turn, put the rows into the table, and profile. With `reference`, learners
    also step without kernels. Gives the seconds that the two first steps of another batch size will take, about."""
    device, turns = table.device, settings.repeats + 2 * in_between(settings)
    made = Variants(device, clock, settings.warm, turns)
    try:
        build_plans(made, settings, batch, plans, table)
        plain = [label(plan) for plan in plans[:2]]
        for name in plain if settings.reference else ():
            if name in made.steps and made.fits(f"{name}, no kernels"):
                made.also(f"{name}, no kernels", without(made.steps[name]), warm=5)
        build_switched(made, settings, batch, plans[:2])
        table.add(timed(made, settings, batch))
        for name in made.left:
            if not table.has((batch, name)):
                table.leave(f"batch {batch}: {name}")
        if settings.profile and device.type == "cuda":
            cost = Estimate(15.0)
            for name in [*plain, *(f"{one}, {switch}" for switch in settings.switch for one in plain)]:
                if name in made.steps and clock.allows(cost.seconds, f"profile of {name}"):
                    with cost.taking():
                        summarise(f"{name} batch {batch}", made.steps[name], 100, device, settings.out)
    finally:
        LEARNERS.clear()
    return made.cost_of_a_pair()


def in_between(settings: StudentBenchmark) -> int:
    """Steps of each variant that are timed in a row, and again by the host alone."""
    return max(1, settings.repeats // 2)


def build_plans(made: Variants, settings: StudentBenchmark, batch: int, plans: Plans, table: Ledger) -> None:
    """The steps of a batch size, as many as there is time for.

    The blind step has a learner of its own, without a compass; the navigated ones share one, which is told before each
    step what to do: so nothing is compiled twice, and the peak of all but the first counts recordings of the others.
    """
    navigated: Learner | None = None
    held = 0
    for number, plan in enumerate(plans):
        name = label(plan)
        if number == 1 and made.steps and made.clock.left > 0:
            # the ratio of the first two is what it is all for, so the second is tried even where time may not do: then
            # the first is timed and kept before
            if made.clock.left < made.estimate():
                table.add(timed(made, settings, batch))
                made.lap()
        elif not made.fits(name):
            continue
        if plan is None or navigated is None:
            held = reserved(made.device)
        if not made.build(name, partial(stepping, settings, batch, plan, navigated), held):
            continue
        if plan is not None and navigated is not None:
            continue
        step = made.steps[name]
        navigated = navigated if plan is None else LEARNERS[step]
        guarded(f"check of graphs, {name}", partial(same_bits, name, LEARNERS[step], made.device))
        if settings.graphs and settings.compile and made.device.type == "cuda":
            made.also(f"{name}, no graphs", launched(step))


def build_switched(made: Variants, settings: StudentBenchmark, batch: int, plans: Plans) -> None:
    """The same steps with something switched on, each by a learner of its own."""
    for switch in settings.switch:
        for plan in plans:
            name = f"{label(plan)}, {switch}"
            if not made.fits(name):
                continue
            build = partial(stepping, settings, batch, plan, switch=switch)
            if made.build(name, build, reserved(made.device)) and switch == "record":
                made_of = batches(settings, batch, made.device)
                learner = LEARNERS[made.steps[name]]
                guarded(f"check of targets, {name}", partial(same_targets, name, learner, made_of))


def timed(made: Variants, settings: StudentBenchmark, batch: int) -> list[dict[str, Any]]:
    """The rows of all that is built."""
    before = graphs()
    times = made.times(settings.repeats)
    if graphs() != before:
        say(f"!!! {graphs() - before} graphs were compiled while timing")
    blind = statistics.median(times["fs-dfm"]) if "fs-dfm" in times else None
    steps = {name: made.steps[name] for name in times}
    more = {"in a row": in_a_row, "host ms": host_alone}
    count, first = in_between(settings), settings.warm + 3
    rows = {name: row_of(batch, name, t, made.peaks[name], blind, settings.length) for name, t in times.items()}
    for column, way in more.items():
        for name, step in steps.items():
            rows[name][column] = guarded(f"{name}, {column}", partial(way, step, made.device, first, count))
    return list(rows.values())


def row_of(
    batch: int, name: str, times: list[float], peak: float | None, blind: float | None, length: int
) -> dict[str, Any]:
    median = statistics.median(times)
    return {
        "batch": batch,
        "step": name,
        "ms": median,
        "fastest": min(times),
        "slowest": max(times),
        "to fs-dfm": median / blind if blind else None,
        "tokens/s": int(batch * length / median * 1e3),
        "peak GiB": peak,
    }


LEARNERS: dict[Step, Learner] = {}


def launched(step: Step) -> Step:
    """The same learner's step with every kernel launched by the host."""

    def plain(n: int) -> object:
        with engine_graphs.plain():
            return step(n)

    return plain


def without(step: Step) -> Step:
    """The same learner's step without kernels."""

    def plain(n: int) -> object:
        with kernels.without():
            return step(n)

    return plain


def plan_of(settings: StudentBenchmark, batch: int, navigate: NavigateSettings | None) -> StudentSettings:
    """The settings of a training whose step is timed."""
    common: dict[str, Any] = {
        "tokens": Path(),
        "init_from": Path(),
        "out": Path(),
        "share": settings.share,
        "loop": StudentLoop(batch=batch, compile=settings.compile, graphs=settings.graphs, steps=1000),
        "optim": StudentOptim(warmup=10),
    }
    if navigate is None:
        return FSDFMSettings(**common)
    return TSDFMSettings(**common, compass=Path(), navigate=navigate, probe_every=0)


def learner_of(
    settings: StudentBenchmark, plan: StudentSettings, pool: engine_graphs.GraphMemory | None = None
) -> Learner:
    """A student with fresh weights, its semi-teacher and, to navigate, a compass; recorded into `pool`, if given."""
    here = world(settings.device)
    spec = random_spec(settings.preset, settings.vocab, settings.length, step_size=True)
    rollout = Chain(plan, spec)
    if isinstance(plan, TSDFMSettings):
        about = spec_from(spec, CompassNet(preset=settings.preset).shape(), "nce")
        net = about.network().to(here.device).eval().requires_grad_(False)
        rollout = NavigatedChain(plan, spec, Compass(about, net, bf16=use_bf16("auto", here.device)))
    parts = Parts(times=FS_DFM.times(plan), teacher=Average(), rollout=rollout, floor=FromData(spec))
    return Learner(StudentTask(plan, spec, None, parts, FLOW_BOUND), here, plan.loop, plan.optim, pool=pool)


def stepping(
    settings: StudentBenchmark,
    batch: int,
    navigate: NavigateSettings | None,
    learner: Learner | None = None,
    switch: Switch | None = None,
) -> Step:
    """The step of a plan, by a learner that is there already (for navigated steps) or by one of its own."""
    plan = plan_of(settings, batch, navigate)
    plan = plan if switch is None else replace(plan, **{switch: True})  # type: ignore[arg-type]
    own = learner if learner is not None and navigate is not None else learner_of(settings, plan)
    rows = batches(settings, batch, world(settings.device).device)
    step = told(own, plan, rows)
    LEARNERS[step] = own
    return step


def told(learner: Learner, plan: StudentSettings, rows: list[HostBatch]) -> Step:
    """A step of a learner that is first told its plan; a learner that navigates can take blind steps too."""
    task: Any = learner.task
    own: Any = task.rollout
    used: Any = own
    if isinstance(own, NavigatedChain) and not isinstance(plan, TSDFMSettings):
        used = Chain(plan, task.spec)
        used.held, used.recorded = own.held, own.recorded

    def step(n: int) -> object:
        task.settings, task.rollout, used.settings = plan, used, plan
        if isinstance(used, NavigatedChain):
            used.own = cast(Any, plan)
        try:
            return learner.update(rows[n % len(rows)], n)
        finally:
            task.rollout = own

    return step


class Sizes(Protocol):
    """What random tokens are made for."""

    @property
    def vocab(self) -> int: ...

    @property
    def length(self) -> int: ...


def batches(settings: Sizes, batch: int, device: torch.device) -> list[HostBatch]:
    """Random tokens; the rows' numbers decide which of them have large steps, evenly."""
    made = []
    for n in range(8):
        generator = torch.Generator().manual_seed(n)
        tokens = torch.randint(settings.vocab, (batch, settings.length), generator=generator)
        numbers = torch.arange(n * batch, (n + 1) * batch)
        made.append(HostBatch(tokens.to(device), numbers.to(device), numbers))
    return made
