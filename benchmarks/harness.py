"""Time real optimisation steps: variants interleaved, medians, peak memory, JSON and a table.

A variant is a `Learner`, the very object the training loop steps, on random tokens. Its memory is what it adds to the
device at its peak, the others at rest; its time is taken with all of them taking turns.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tsdfm.engine.distributed import World, pick_device
from tsdfm.engine.learner import Learner
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec

Step = Callable[[int], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the median step, the fastest and the slowest, and gibibytes at the peak (none on a CPU).

    The peak is what the process takes from the device, memory of recorded graphs and all.
    """

    median: float
    low: float
    high: float
    peak: float | None


@dataclass
class Clock:
    """A time limit for a list of benchmarks: what does not fit any more is left out, and said so."""

    limit: float
    start: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        return self.limit - (time.perf_counter() - self.start)

    def allows(self, seconds: float, what: str) -> bool:
        """Is there time for `what`?"""
        if self.left >= seconds:
            return True
        say(f"left out for want of time ({self.left:.0f} s left): {what}")
        return False


def say(line: str) -> None:
    """A line that is seen at once, whatever happens after it."""
    print(line, flush=True)


def guarded(what: str, work: Callable[[], Any]) -> Any:
    """`work()`; where it fails, the trace is printed and the rest of the run goes on without it."""
    try:
        return work()
    except Exception:
        say(f"!!! FAILED: {what}\n{traceback.format_exc()}")
        return None


def world(device: str) -> World:
    return World(device=pick_device(device))


def random_spec(preset: str, vocab: int, length: int, *, step_size: bool = False) -> VelocitySpec:
    """A network of random tokens: sizes are all that a benchmark asks of it."""
    return VelocitySpec(
        shape=NetSettings(preset=preset).shape(),
        vocab=vocab,
        source="uniform",
        schedule="poly:1",
        length=length,
        anchor=0,
        tokenizer="random",
        step_size=step_size,
    )


def stepper(learner: Learner, batches: list[Any]) -> Step:
    """A function that takes one optimiser step on the next batch."""
    return lambda n: learner.update(batches[n % len(batches)], n)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(step: Step, n: int, device: torch.device) -> float:
    """One step, the device's work included."""
    wait(device)
    start = time.perf_counter()
    step(n)
    wait(device)
    return (time.perf_counter() - start) * 1e3


def measure(make: Mapping[str, Callable[[], Step]], device: torch.device, warm: int, repeats: int) -> dict[str, Timing]:
    """Peak memory of each variant as it is built, then the times of all of them in turn; one that fails is left out."""
    steps: dict[str, Step] = {}
    peaks: dict[str, float | None] = {}
    for name, build in make.items():
        begin = time.perf_counter()
        ready = guarded(name, partial(built, build, device, warm))
        if ready is not None:
            steps[name], peaks[name] = ready
            say(f"  {name}: built and warm after {time.perf_counter() - begin:.0f} s, peak {peaks[name] or 0:.2f} GiB")
    times = interleaved(steps, device, repeats, first=warm + 3)
    return {name: Timing(statistics.median(t), min(t), max(t), peaks[name]) for name, t in times.items()}


def interleaved(
    steps: Mapping[str, Step], device: torch.device, repeats: int, first: int = 0
) -> dict[str, list[float]]:
    """Milliseconds of `repeats` steps of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for n in range(first, first + repeats):
        for name, step in steps.items():
            times[name].append(milliseconds(step, n, device))
    return times


def in_a_row(step: Step, device: torch.device, first: int, count: int) -> float:
    """Milliseconds of a step among `count` that nobody waits between, as in a training."""
    wait(device)
    start = time.perf_counter()
    for n in range(first, first + count):
        step(n)
    wait(device)
    return (time.perf_counter() - start) * 1e3 / count


def host_alone(step: Step, device: torch.device, first: int, count: int) -> float:
    """Milliseconds the host needs for a step: the median of steps that each start with an idle device."""
    spent = []
    for n in range(first, first + count):
        wait(device)
        start = time.perf_counter()
        step(n)
        spent.append((time.perf_counter() - start) * 1e3)
    wait(device)
    return statistics.median(spent)


def reserved(device: torch.device) -> int:
    """Bytes the process holds on the device, without what it only keeps for later."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def built(
    build: Callable[[], Step], device: torch.device, warm: int, before: int | None = None
) -> tuple[Step, float | None]:
    """A warm variant, and the gibibytes it adds at its peak to those `before` it (none: to what is there now)."""
    before = reserved(device) if before is None else before
    step = build()
    for n in range(warm):
        step(n)
    wait(device)
    if device.type != "cuda":
        return step, None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for n in range(warm, warm + 3):
        step(n)
    wait(device)
    return step, (torch.cuda.max_memory_reserved(device) - before) / 2**30


def quick(work: Callable[[], Any], device: torch.device, repeats: int = 15) -> float:
    """Milliseconds of one small piece of device work: the median over calls, by events on the device."""
    for _ in range(3):
        work()
    if device.type != "cuda":
        return statistics.median(milliseconds(lambda _: work(), n, device) for n in range(repeats))
    spent = []
    flush = torch.empty(1 << 26, dtype=torch.int32, device=device)  # 256 MiB: no input is left in the cache
    for _ in range(repeats):
        flush.zero_()
        # about a millisecond, in which the host launches everything: the device alone is measured
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        spent.append(float(begin.elapsed_time(end)))
    return statistics.median(spent)


def hardware(device: torch.device) -> str:
    """What it ran on, in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def report(
    title: str, rows: list[dict[str, Any]], device: torch.device, out: Path | None, missing: list[str] | None = None
) -> None:
    """Print a table, and write it as JSON where asked; what is `missing` from it is named in both."""
    left = {"not measured": missing} if missing else {}
    if missing:
        say(f"{title}: not measured for want of time: {'; '.join(missing)}")
    if not rows:
        say(f"{title}: nothing was measured")
        return
    table = Table(title=title, caption=hardware(device))
    names = list({name: None for row in rows for name in row})
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        cells = (row.get(name) for name in names)
        table.add_row(*("" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in cells))
    Console(width=130).print(table)
    if out is not None:
        keep(out.parent / "results.json", out.stem, {"title": title, "hardware": hardware(device), "rows": rows} | left)


class Ledger:
    """The rows of one table, put into FOLDER/results.json as they come: a run that was cut short goes on there.

    `names` are the columns that say which row it is. Earlier rows count if they are of this title and this hardware.
    """

    def __init__(self, title: str, names: tuple[str, ...], device: torch.device, out: Path | None) -> None:
        self.title, self.names, self.device, self.out = title, names, device, out
        self.rows: list[dict[str, Any]] = []
        self.missing: list[str] = []
        place = out and out.parent / "results.json"
        if out is not None and place is not None and place.exists():
            table = json.loads(place.read_text()).get(out.stem, {})
            if (table.get("title"), table.get("hardware")) == (title, hardware(device)):
                self.rows = table["rows"]

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self.names)

    def has(self, *keys: tuple[Any, ...]) -> bool:
        """Are all of these rows there already?"""
        return set(keys) <= {self.key(row) for row in self.rows}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Put rows in, in the place of earlier ones with the same key, and keep the table at once."""
        new = {self.key(row) for row in rows}
        self.rows = [row for row in self.rows if self.key(row) not in new] + rows
        if self.out is not None:
            found = {"title": self.title, "hardware": hardware(self.device), "rows": self.rows}
            keep(self.out.parent / "results.json", self.out.stem, found)

    def leave(self, what: str) -> None:
        """Name what was not measured."""
        self.missing.append(what)

    def show(self) -> None:
        report(self.title, self.rows, self.device, self.out, self.missing)


def keep(place: Path, name: str, table: dict[str, Any]) -> None:
    """Put a table into the one file of results, at once: what comes after may fail."""
    place.parent.mkdir(parents=True, exist_ok=True)
    tables = json.loads(place.read_text()) if place.exists() else {}
    place.write_text(json.dumps({**tables, name: table}, indent=1))
