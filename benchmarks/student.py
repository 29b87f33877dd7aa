"""The distillation step, blind (FS-DFM) against navigated (TS-DFM): `python -m benchmarks student`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Step, built, guarded, interleaved, random_spec, report, say, stepper, world
from benchmarks.profile import summarise
from tsdfm import kernels
from tsdfm.compass.model import Compass
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassNet
from tsdfm.engine import graphs as engine_graphs
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.settings import option
from tsdfm.student.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
from tsdfm.student.targets import steady
from tsdfm.student.task import HostBatch, StudentTask


@dataclass(frozen=True, kw_only=True)
class StudentBenchmark:
    """What to time."""

    preset: str = option("170m", "size of the student; the compass has half its blocks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8,), "rows of a step")
    tau: tuple[float, ...] = option((0.2,), "τ of the navigated step")
    k: tuple[int, ...] = option((5,), "candidates of a midpoint")
    share: float | None = option(None, "share of rows with RK-4; none is what the weights of h say, a half")
    reference: bool = option(True, "also time the same steps with torch's own operations instead of kernels")
    profile: bool = option(False, "show where the time goes")
    compile: bool = option(True, "torch.compile the networks")
    graphs: bool = option(True, "replay recorded passes")
    warm: int = option(18, "steps before timing: every shape is met twice, and recorded")
    repeats: int = option(20, "timed steps of each variant")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: StudentBenchmark) -> None:
    """Time every variant at every batch size."""
    here = world(settings.device)
    rows: list[dict[str, Any]] = []
    for batch in settings.batch:
        variants = {"fs-dfm": maker(settings, batch, None)}
        for tau in settings.tau:
            for k in settings.k:
                variants[f"ts-dfm τ={tau} K={k}"] = maker(settings, batch, NavigateSettings(tau=tau, k=k))
        rows += compare(settings, batch, variants, here.device)
        title = f"student step: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
        report(title, rows, here.device, settings.out and settings.out / "student.json")


def compare(
    settings: StudentBenchmark, batch: int, variants: dict[str, Callable[[], Step]], device: torch.device
) -> list[dict[str, Any]]:
    """Build, time in turn, and profile. With `reference`, each learner also steps without kernels."""
    steps: dict[str, Step] = {}
    peaks: dict[str, float | None] = {}
    for name, build in variants.items():
        start, before = time.perf_counter(), graphs()
        made = guarded(name, partial(built, build, device, settings.warm))
        if made is None:
            continue
        steps[name], peaks[name] = made
        peak = f"{peaks[name]:.2f} GiB" if peaks[name] is not None else "not measured"
        spent = time.perf_counter() - start
        say(f"  {name}: warm after {spent:.0f} s, {graphs() - before} graphs compiled, peak {peak}")
        guarded(f"check of graphs, {name}", partial(same_bits, name, steps[name], device))
        if settings.graphs and settings.compile and device.type == "cuda":
            steps[name + ", no graphs"], peaks[name + ", no graphs"] = launched(steps[name]), None
            guarded("without graphs", partial(steps[name + ", no graphs"], 0))
        if settings.reference:
            plain = name + ", no kernels"
            ready = guarded(plain, partial(built, partial(without, steps[name]), device, 2))
            if ready is not None:
                steps[plain], peaks[plain] = ready[0], None
    before = graphs()
    times = interleaved(steps, device, settings.repeats, first=settings.warm + 3)
    if graphs() != before:
        say(f"!!! {graphs() - before} graphs were compiled while timing")
    blind = statistics.median(times["fs-dfm"]) if "fs-dfm" in times else None
    if settings.profile:
        for name in variants:
            if name in steps:
                summarise(f"{name} batch {batch}", steps[name], 100, device, settings.out)
    return [row_of(batch, name, t, peaks[name], blind, settings.length) for name, t in times.items()]


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


def graphs() -> int:
    """How many graphs torch.compile has made so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


LEARNERS: dict[Step, Learner] = {}


def launched(step: Step) -> Step:
    """The same learner's step with every kernel launched by the host."""

    def plain(n: int) -> object:
        with engine_graphs.plain():
            return step(n)

    return plain


def same_bits(name: str, step: Step, device: torch.device) -> None:
    """Replays against plain passes on the same input: semi-teacher, student and its gradients, compass."""
    learner = LEARNERS[step]
    task = learner.task
    if device.type != "cuda" or not isinstance(task, StudentTask) or learner.ema is None:
        return
    spec, rows = task.spec, learner.loop.batch
    mine_of: Any = learner.plain.hidden
    semi_of: Any = task.semi.hidden
    made = torch.Generator(device).manual_seed(5)
    x = torch.randint(spec.vocab, (rows, spec.length), generator=made, device=device)
    t, h = (torch.rand(rows, generator=made, device=device) for _ in range(2))

    def semi() -> list[Tensor]:
        most = task.most_large(rows)
        with torch.no_grad(), autocast(learner.bf16, device):
            return [semi_of(*steady(task.semi, x[:most].clone(), t[:most].clone(), h[:most].clone()))]

    def student() -> list[Tensor]:
        learner.optimiser.adamw.zero_grad(set_to_none=True)
        learner.model.train()
        torch.manual_seed(3)
        with autocast(learner.bf16, device):
            out = mine_of(*steady(learner.plain, x.clone(), t.clone(), h.clone()))
        (out.float() * torch.linspace(-1, 1, out.shape[-1], device=device)).mean().backward()
        found = [out.detach().clone(), *(p.grad.clone() for p in learner.plain.parameters() if p.grad is not None)]
        learner.optimiser.adamw.zero_grad(set_to_none=True)
        return found

    def compass() -> list[Tensor]:
        return [task.compass.energy(x.repeat(2, 1)[:size]) for size in (5, 10, 3)] if task.compass else []

    for what, run in {"semi-teacher": semi, "student and gradients": student, "compass": compass}.items():
        run(), run()
        mine = run()
        with engine_graphs.plain():
            theirs, again = run(), run()
        same, twice = (all(torch.equal(a, b) for a, b in zip(theirs, o, strict=True)) for o in (mine, again))
        pairs = zip(mine, theirs, strict=True)
        far = max((float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in pairs), default=0.0)
        say(f"  {name}: {what}: {len(mine)} tensors, replayed to {far:.1e}, same bits {same} (plain twice: {twice})")
    recorded = {k: len(v.made) for k, v in holders(learner).items()}
    broken = [k for k, v in holders(learner).items() if v.off]
    say(f"  {name}: shapes recorded {recorded}" + (f"  !!! recording FAILED for {broken}" if broken else ""))


def holders(learner: Learner) -> dict[str, Any]:
    """The recorded functions of a learner."""
    assert learner.ema is not None
    found = {"student": vars(learner.plain).get("hidden"), "semi": vars(learner.ema.module).get("hidden")}
    net = getattr(getattr(learner.task, "compass", None), "net", None)
    found["compass"] = vars(net).get("forward") if net is not None else None
    return {k: v for k, v in found.items() if hasattr(v, "made")}


def without(step: Step) -> Step:
    """The same learner's step without kernels."""

    def plain(n: int) -> object:
        with kernels.without():
            return step(n)

    return plain


def maker(settings: StudentBenchmark, batch: int, navigate: NavigateSettings | None) -> Callable[[], Step]:
    """How to build a variant: a student with fresh weights, its semi-teacher and, to navigate, a compass."""

    def build() -> Step:
        here = world(settings.device)
        spec = random_spec(settings.preset, settings.vocab, settings.length, step_size=True)
        compass = None
        if navigate is not None:
            about = spec_from(spec, CompassNet(preset=settings.preset).shape(), "nce")
            net = about.network().to(here.device).eval().requires_grad_(False)
            compass = Compass(about, net, bf16=use_bf16("auto", here.device))
        plan = StudentSettings(
            tokens=Path(),
            init_from=Path(),
            out=Path(),
            policy="blind" if navigate is None else "sequence-to-token",
            compass=None if navigate is None else Path(),
            navigate=navigate or NavigateSettings(),
            share=settings.share,
            probe_every=0,
            loop=StudentLoop(batch=batch, compile=settings.compile, graphs=settings.graphs, steps=1000),
            optim=StudentOptim(warmup=10),
        )
        learner = Learner(StudentTask(plan, spec, None, compass=compass), here, plan.loop, plan.optim)
        made = stepper(learner, batches(settings, batch, here.device))
        LEARNERS[made] = learner
        return made

    return build


def batches(settings: StudentBenchmark, batch: int, device: torch.device) -> list[HostBatch]:
    """Random tokens; the rows' numbers decide which of them have large steps, evenly."""
    made = []
    for n in range(8):
        generator = torch.Generator().manual_seed(n)
        tokens = torch.randint(settings.vocab, (batch, settings.length), generator=generator)
        numbers = torch.arange(n * batch, (n + 1) * batch)
        made.append(HostBatch(tokens.to(device), numbers.to(device), numbers))
    return made
