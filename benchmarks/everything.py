"""All benchmarks in one process, the weightiest first, within a time limit: `python -m benchmarks all`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import compass, kernels, sampling, student, teacher
from benchmarks.harness import Clock, guarded, hardware, say, world
from tsdfm.errors import UserError
from tsdfm.settings import nearest, option

PARTS = ("check", "student", "compass", "sampling", "kernels", "teacher")


@dataclass(frozen=True, kw_only=True)
class AllBenchmarks:
    """What to run."""

    out: Path | None = option(None, "folder for the tables as JSON")
    limit: float = option(330.0, "seconds for all of it: what does not fit is left out")
    parts: tuple[str, ...] = option(PARTS, "which, in this order")
    preset: str = option("170m", "size of the networks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens in a row")
    batch: tuple[int, ...] = option((8,), "rows of a training step")
    tau: tuple[float, ...] = option((0.2,), "τ of the navigated step")
    k: tuple[int, ...] = option((5,), "candidates of a midpoint")
    texts: tuple[int, ...] = option((1, 32), "texts written at a time")
    passes: tuple[int, ...] = option((8, 16, 32), "network passes of the few-step model")
    tables: tuple[str, ...] = option(("draw", "losses", "head", "attention"), "which tables of kernels")
    reference: bool = option(True, "also time steps without kernels")
    profile: bool = option(False, "show where the time of a step goes")
    compile: bool = option(True, "torch.compile the networks")
    device: str = option("auto", "auto, cpu or cuda")


def run(settings: AllBenchmarks) -> None:
    """One part after another; one that fails does not take the others along."""
    for part in settings.parts:
        if part not in PARTS:
            raise UserError(f"no benchmark is called {part!r}{nearest(part, PARTS)}")
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


def one(part: str, settings: AllBenchmarks, device: torch.device, clock: Clock) -> None:
    shared: dict[str, Any] = {"vocab": settings.vocab, "device": settings.device, "out": settings.out}
    size: dict[str, Any] = {"preset": settings.preset, "length": settings.length, "compile": settings.compile}
    if part == "check":
        kernels.check(device)
    elif part == "student":
        chosen: dict[str, Any] = {"batch": settings.batch, "tau": settings.tau, "k": settings.k}
        chosen |= {"profile": settings.profile, "reference": settings.reference}
        student.run(student.StudentBenchmark(**shared, **size, **chosen))
    elif part == "compass":
        shared["out"] = settings.out and settings.out / "compass.json"
        compass.run(compass.CompassBenchmark(**shared, **size))
    elif part == "teacher":
        teacher.run(teacher.TeacherBenchmark(**shared, **size))
    elif part == "kernels":
        limit = min(150.0, clock.left - 5)
        kernels.run(kernels.KernelBenchmark(**shared, limit=limit, parts=settings.tables, checked=True))
    elif part == "sampling":
        chosen = {"batch": settings.texts, "steps": settings.passes, "limit": clock.left - 5}
        sampling.run(sampling.SamplingBenchmark(**shared, **size, **chosen))
