"""All benchmarks in one process, the weightiest first, within a time limit: `python -m benchmarks all`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from benchmarks import compass, growth, kernels, sampling, student, teacher
from benchmarks.harness import Clock, guarded, hardware, say, world
from tsdfm.settings import option

Part = Literal["check", "student", "kernels", "sampling", "compass", "teacher", "growth"]


@dataclass(frozen=True, kw_only=True)
class AllBenchmarks:
    """What to run."""

    out: Path | None = option(None, "folder for the tables as JSON")
    limit: float = option(300.0, "seconds for all of it: what does not fit is left out, and named")
    quickly: bool = option(False, "fewer points of the grids and fewer repeats: batch 8 and 32, K and length to grow")
    parts: tuple[Part, ...] = option(get_args(Part), "which, in this order")
    preset: str = option("170m", "size of the networks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8, 16, 32), "rows of a training step")
    tau: tuple[float, ...] = option((0.2, 0.02, 0.4), "τ of the navigated step")
    k: tuple[int, ...] = option((5, 2, 8), "candidates of a midpoint")
    ks: tuple[int, ...] = option((5, 1, 2, 3, 8), "candidates that growth is followed over")
    lengths: tuple[int, ...] = option((1024, 256, 512, 2048), "lengths that growth is followed over")
    vocabs: tuple[int, ...] = option((50257, 8192, 32768, 128256), "|V| that growth is followed over")
    grid: Literal["star", "full"] = option("star", "the student's grid: one dial off its centre at a time, or all")
    repeats: int | None = option(None, "timed steps of each variant; none is what each benchmark has")
    warm: int | None = option(None, "steps before timing; none is what each benchmark has")
    texts: tuple[int, ...] = option((1, 32), "texts written at a time")
    passes: tuple[int, ...] = option((8, 16, 32), "network passes of the few-step model")
    tables: tuple[kernels.Table, ...] = option(get_args(kernels.Table), "which tables of kernels")
    reference: bool = option(False, "also time steps without kernels")
    profile: bool = option(False, "show where the time of a step goes")
    switch: tuple[student.Switch, ...] = option((), "settings that student steps are also timed with, switched on")
    compile: bool = option(True, "torch.compile the networks")
    device: str = option("auto", "auto, cpu or cuda")


def run(settings: AllBenchmarks) -> None:
    """One part after another; one that fails does not take the others along."""
    device, clock = world(settings.device).device, Clock(settings.limit)
    torch._dynamo.config.cache_size_limit = 64  # one process compiles one network for many shapes here
    say(hardware(device))
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True)
    for part in settings.parts:
        if clock.allows(20.0, part):
            say(f"── {part} ({clock.left:.0f} s left)")
            guarded(part, partial(one, part, settings, device, clock))
            if device.type == "cuda":
                guarded(f"memory after {part}", torch.cuda.empty_cache)
    say(f"done with {clock.left:.0f} s to spare")


def one(part: Part, settings: AllBenchmarks, device: torch.device, clock: Clock) -> None:
    """Run a part within what is left of the time."""
    quick = settings.quickly
    left: dict[str, Any] = {"device": settings.device, "out": settings.out, "limit": max(0.0, clock.left - 5)}
    size: dict[str, Any] = {"preset": settings.preset, "vocab": settings.vocab, "length": settings.length}
    size |= {"compile": settings.compile, **left}
    given = {"warm": settings.warm, "repeats": settings.repeats or (10 if quick else None)}
    size_and_pace = size | {name: value for name, value in given.items() if value is not None}
    batch = (settings.batch[0], *settings.batch[-1:]) if quick and len(settings.batch) > 1 else settings.batch
    if part == "check":
        kernels.check(device)
    elif part == "student":
        chosen: dict[str, Any] = {"batch": batch, "tau": settings.tau, "k": settings.k, "grid": settings.grid}
        chosen |= {"profile": settings.profile, "reference": settings.reference, "switch": settings.switch}
        student.run(student.StudentBenchmark(**size_and_pace, **chosen))
    elif part == "compass":
        compass.run(compass.CompassBenchmark(**size_and_pace, batch=batch[:1] if quick else batch))
    elif part == "teacher":
        teacher.run(teacher.TeacherBenchmark(**size_and_pace, batch=batch))
    elif part == "kernels":
        tables = settings.tables[:1] if quick else settings.tables
        kernels.run(kernels.KernelBenchmark(vocab=settings.vocab, **left, tables=tables, checked=True))
    elif part == "sampling":
        sampling.run(sampling.SamplingBenchmark(**size, batch=settings.texts, steps=settings.passes))
    elif part == "growth":
        pace: dict[str, Any] = {name: value for name, value in given.items() if value is not None and not quick}
        axes: dict[str, Any] = {"ks": settings.ks, "lengths": settings.lengths}
        axes["vocabs"] = settings.vocabs[:1] if quick else settings.vocabs
        growth.run(growth.GrowthBenchmark(preset=settings.preset, rows=settings.batch[0], **left, **axes, **pace))
