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

from benchmarks.harness import Step, built, guarded, interleaved, report, say, stepper, world
from benchmarks.profile import summarise
from tsdfm import kernels
from tsdfm.compass.model import Compass
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassNet
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import use_bf16
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.settings import option
from tsdfm.student.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
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
    warm: int = option(5, "steps before timing")
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
        spec = VelocitySpec(
            shape=NetSettings(preset=settings.preset).shape(),
            vocab=settings.vocab,
            source="uniform",
            schedule="poly:1",
            length=settings.length,
            anchor=0,
            tokenizer="random",
            step_size=True,
        )
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
            loop=StudentLoop(batch=batch, compile=settings.compile, steps=1000),
            optim=StudentOptim(warmup=10),
        )
        learner = Learner(StudentTask(plan, spec, None, compass=compass), here, plan.loop, plan.optim)
        return stepper(learner, batches(settings, batch, here.device))

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
