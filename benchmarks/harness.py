"""Time real optimisation steps: variants interleaved, medians, peak memory, JSON and a table.

A variant is a `Learner`, the very object the training loop steps, on random tokens. Its memory is what it adds to the
device at its peak, the others at rest; its time is taken with all of them taking turns.
"""

from __future__ import annotations

import contextlib
import gc
import json
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from tsdfm.engine.distributed import Processes, pick_device
from tsdfm.engine.learner import Learner
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.store.files import write_json

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


@dataclass
class Estimate:
    """Seconds that the next of several alike pieces of work will take: what the last one took, and at first a guess."""

    seconds: float

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Around a piece of work."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = time.perf_counter() - start


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


def world(device: str) -> Processes:
    return Processes(device=pick_device(device))


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


def graphs() -> int:
    """How many graphs torch.compile has made so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


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
            steps[name], peaks[name] = ready.step, ready.peak
            say(f"  {name}: built and warm after {time.perf_counter() - begin:.0f} s, peak {peaks[name] or 0:.2f} GiB")
    times = interleaved(steps, device, repeats, first=warm + 3)
    return {name: Timing(statistics.median(t), min(t), max(t), peaks[name]) for name, t in times.items()}


def interleaved(
    steps: Mapping[str, Step], device: torch.device, repeats: int, first: int = 0
) -> dict[str, list[float]]:
    """Milliseconds of `repeats` steps of each, taking turns; one that fails is left out from there on."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for n in range(first, first + repeats):
        for name in list(times):
            spent = guarded(f"{name}, while timing", partial(milliseconds, steps[name], n, device))
            if spent is None:
                del times[name]
            else:
                times[name].append(spent)
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


class Built(NamedTuple):
    """A warm variant, its gibibytes at the peak, and about how many seconds a step of it takes."""

    step: Step
    peak: float | None
    seconds: float


def built(build: Callable[[], Step], device: torch.device, warm: int, before: int | None = None) -> Built:
    """A warm variant; its peak is what it adds to the bytes `before` it (none: to what is there now)."""
    before = reserved(device) if before is None else before
    step = build()
    start = time.perf_counter()
    for n in range(warm):
        start = time.perf_counter()
        step(n)
    wait(device)
    if device.type != "cuda":
        return Built(step, None, time.perf_counter() - start)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    for n in range(warm, warm + 3):
        step(n)
    wait(device)
    seconds = (time.perf_counter() - start) / 3
    return Built(step, (torch.cuda.max_memory_reserved(device) - before) / 2**30, seconds)


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
        keep_table(title, rows, device, out, missing)


def keep_table(
    title: str, rows: list[dict[str, Any]], device: torch.device, out: Path, missing: list[str] | None
) -> None:
    """Put a table, named as `out` is, into the one file of results beside it."""
    left = {"not measured": missing} if missing else {}
    keep(out.parent / "results.json", out.stem, {"title": title, "hardware": hardware(device), "rows": rows} | left)


class Ledger:
    """The rows of one table, put into FOLDER/results.json as they come: a run that was cut short goes on there.

    `names` are the columns that say which row it is. Earlier rows count if they are of this title and this hardware,
    and if the table `goes_on`: one that does not begins anew.
    """

    def __init__(
        self, title: str, names: tuple[str, ...], device: torch.device, out: Path | None, *, goes_on: bool = True
    ) -> None:
        self.title, self.names, self.device, self.out = title, names, device, out
        self.rows: list[dict[str, Any]] = []
        self.missing: list[str] = []
        place = out and out.parent / "results.json"
        if goes_on and out is not None and place is not None and place.exists():
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
        self._keep()

    def leave(self, what: str) -> None:
        """Name what was not measured."""
        self.missing.append(what)
        self._keep()

    def _keep(self) -> None:
        if self.out is not None and self.rows:
            keep_table(self.title, self.rows, self.device, self.out, self.missing)

    def show(self) -> None:
        report(self.title, self.rows, self.device, self.out, self.missing)


def keep(place: Path, name: str, table: dict[str, Any]) -> None:
    """Put a table into the one file of results, at once: what comes after may fail."""
    tables = json.loads(place.read_text()) if place.exists() else {}
    write_json(place, {**tables, name: table})
