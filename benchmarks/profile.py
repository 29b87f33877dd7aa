"""Where the time of a step goes: by phase (events on the device), by kind of kernel and by kernel (torch.profiler)."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Step, guarded, host_alone, in_a_row, report, say, wait
from tsdfm.distil import chain
from tsdfm.distil.midpoint import Blind, Navigated
from tsdfm.distil.task import StudentTask
from tsdfm.engine.ema import Ema
from tsdfm.engine.learner import Learner
from tsdfm.engine.optim import Optimiser

PHASES: tuple[tuple[Any, str, str], ...] = (
    (Learner, "update", "the whole step"),
    (StudentTask, "states", "  states of the batch"),
    (StudentTask, "large_target", "  target (semi-teacher and midpoints)"),
    (chain, "_stage", "    stages of the semi-teacher"),
    (Blind, "advance", "    blind midpoints"),
    (Navigated, "advance", "    navigated midpoints"),
    (Navigated, "_survey", "      survey"),
    (Navigated, "_candidates", "      candidates"),
    (Navigated, "_score", "      compass"),
    (StudentTask, "losses", "  student forward and loss"),
    (StudentTask, "loss", "  everything before backward"),
    (Optimiser, "step", "  optimiser"),
    (Ema, "update", "  average"),
)
KINDS = (
    ("ours", ("sums_kernel", "choice_kernel", "divergence_kernel", "tokens_kernel", "uniform_kernel")),
    ("attention", ("flash", "fmha", "cudnn", "sdpa")),
    ("optimiser", ("multi_tensor", "fused_adam", "lerp")),
    ("products", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "splitk")),
    ("compiled", ("triton_",)),
    ("copies", ("memcpy", "memset")),
    ("eager", ("at::native", "elementwise", "reduce", "index", "scatter", "gather")),
)


@contextlib.contextmanager
def phases(found: dict[str, list[tuple[Any, Any]]]) -> Iterator[None]:
    """Put a pair of events around every call of the functions above."""
    kept = []
    for owner, name, label in PHASES:
        plain = vars(owner)[name]
        kept.append((owner, name, plain))

        @functools.wraps(plain)
        def timed(*args: Any, _plain: Any = plain, _label: str = label, **more: Any) -> Any:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            made = _plain(*args, **more)
            end.record()
            found[_label].append((begin, end))
            return made

        setattr(owner, name, timed)
    try:
        yield
    finally:
        for owner, name, plain in kept:
            setattr(owner, name, plain)


def kind_of(name: str) -> str:
    low = name.lower()
    return next((kind for kind, words in KINDS if any(word in low for word in words)), "other")


def summarise(name: str, step: Step, first: int, device: torch.device, out: Path | None, steps: int = 4) -> None:
    """Print and keep the three tables of one variant."""
    if device.type == "cuda":
        guarded(f"phases of {name}", lambda: by_phase(name, step, first, device, out, steps))
        guarded(f"profile of {name}", lambda: by_kernel(name, step, first + steps, device, out, steps))


def by_phase(name: str, step: Step, first: int, device: torch.device, out: Path | None, steps: int) -> None:
    found: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    with phases(found):
        for n in range(first, first + steps):
            step(n)
    wait(device)
    rows = [
        {
            "phase": label,
            "ms a step": sum(a.elapsed_time(b) for a, b in found[label]) / steps,
            "calls a step": len(found[label]) / steps,
        }
        for _, _, label in PHASES
        if label in found
    ]
    report(f"{name}: phases, on the device's clock", rows, device, out and out / f"phases-{slug(name)}.json")


def by_kernel(name: str, step: Step, first: int, device: torch.device, out: Path | None, steps: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as made:
        for n in range(first, first + steps):
            step(n)
        wait(device)
    rows: list[dict[str, Any]] = []
    kinds: dict[str, float] = defaultdict(float)
    host: dict[str, float] = {}
    for event in made.key_averages():
        spent = float(getattr(event, "self_device_time_total", 0.0)) / 1e3 / steps
        named = event.key.startswith(("Optimizer.", "ProfilerStep"))  # spans of others, which would count twice
        if spent > 0 and not named and "CPU" not in str(event.device_type):
            rows.append({"kernel": event.key[:84], "ms a step": spent, "calls a step": event.count / steps})
            kinds[kind_of(event.key)] += spent
        if event.key.startswith("cuda") and "Occupancy" not in event.key:
            host[event.key] = event.count / steps
    rows.sort(key=lambda row: -float(row["ms a step"]))
    total = sum(kinds.values())
    table = [{"kind": k, "ms a step": v, "share": v / total} for k, v in sorted(kinds.items(), key=lambda x: -x[1])]
    where = out and out / f"kinds-{slug(name)}.json"
    report(f"{name}: kinds of kernels, {total:.1f} ms busy a step", table, device, where)
    report(f"{name}: kernels", rows[:28], device, out and out / f"kernels-{slug(name)}.json")
    calls = sum(v for k, v in host.items() if "Launch" in k or "Memcpy" in k or "Memset" in k)
    wall, alone = in_a_row(step, device, first, 2 * steps), host_alone(step, device, first, 2 * steps)
    say(
        f"{name}: busy {total:.1f} ms of a step's {wall:.1f} ms in a row; the host alone needs {alone:.1f} ms for "
        f"{calls:g} launches and copies; {sum(float(row['calls a step']) for row in rows):g} kernels"
    )
    waits = {k: v for k, v in host.items() if "Sync" in k or "Memcpy" in k or "Launch" in k}
    say(f"{name}: calls of the driver a step: " + ", ".join(f"{k} {v:g}" for k, v in sorted(waits.items())))


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
