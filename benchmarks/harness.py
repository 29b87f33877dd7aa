"""Time real optimisation steps: variants interleaved, medians, peak memory, JSON and a table.

A variant is a `Learner`, the very object the training loop steps, on random tokens. Memory is measured with one variant
alone on the device, time with all of them taking turns.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tsdfm.engine.distributed import World, pick_device
from tsdfm.engine.learner import Learner

Step = Callable[[int], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the median step, the fastest and the slowest, and gibibytes at the peak (none on a CPU)."""

    median: float
    low: float
    high: float
    peak: float | None


def world(device: str) -> World:
    return World(device=pick_device(device))


def stepper(learner: Learner, batches: list[Any]) -> Step:
    """A function that takes one optimiser step on the next batch."""
    return lambda n: learner.update(batches[n % len(batches)], n)


def milliseconds(step: Step, n: int, device: torch.device) -> float:
    """One step, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step(n)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3


def measure(make: Mapping[str, Callable[[], Step]], device: torch.device, warm: int, repeats: int) -> dict[str, Timing]:
    """Peak memory of each variant alone, then the times of all of them in turn."""
    peaks: dict[str, float | None] = dict.fromkeys(make)
    if device.type == "cuda":
        for name, build in make.items():
            peaks[name] = peak_of(build, device, warm)
    steps = {name: build() for name, build in make.items()}
    times: dict[str, list[float]] = {name: [] for name in make}
    for n in range(warm + repeats):
        for name, step in steps.items():
            spent = milliseconds(step, n, device)
            if n >= warm:
                times[name].append(spent)
    return {name: Timing(statistics.median(t), min(t), max(t), peaks[name]) for name, t in times.items()}


def peak_of(build: Callable[[], Step], device: torch.device, warm: int) -> float:
    """Gibibytes at the peak of a few steps with nothing else on the device."""
    gc.collect()
    torch.cuda.empty_cache()
    step = build()
    for n in range(warm):
        step(n)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    for n in range(warm, warm + 3):
        step(n)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) / 2**30


def hardware(device: torch.device) -> str:
    """What it ran on, in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def report(title: str, rows: list[dict[str, Any]], device: torch.device, out: Path | None) -> None:
    """Print a table, and write it as JSON where asked."""
    table = Table(title=title, caption=hardware(device))
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*("" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=120).print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"title": title, "hardware": hardware(device), "rows": rows}, indent=2))
