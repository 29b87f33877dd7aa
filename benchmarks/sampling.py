"""Generation: few steps against many, and against an autoregressive transformer: `python -m benchmarks sampling`.

Long generations are timed over part of their steps, all of which cost the same, and scaled; the table says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Clock, guarded, milliseconds, random_spec, report, world
from tsdfm.engine.graphs import Replayed, captured
from tsdfm.engine.learner import compile_in_place
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.flow import RowNoise, grid, jump_from, solve
from tsdfm.nn.causal import CausalNet
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import Velocity
from tsdfm.settings import option


@dataclass(frozen=True, kw_only=True)
class SamplingBenchmark:
    """What to time."""

    preset: str = option("170m", "size of all networks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens of a text")
    batch: tuple[int, ...] = option((1, 32), "texts at a time")
    steps: tuple[int, ...] = option((8, 16, 32), "network passes of the few-step model")
    teacher_steps: int = option(1024, "network passes of the teacher")
    timed: int = option(32, "passes of a long generation that are really timed")
    repeats: int = option(3, "timed generations")
    compile: bool = option(True, "torch.compile the networks")
    limit: float = option(300.0, "seconds at most: what does not fit is left out")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: SamplingBenchmark) -> None:
    """Time every batch size."""
    device, clock, rows = world(settings.device).device, Clock(settings.limit), list[dict[str, Any]]()
    for batch in settings.batch:
        for name, steps, work, scale in cases(settings, batch, device):
            if not clock.allows(10.0, f"{name}, batch {batch}"):
                continue
            spent = guarded(name, partial(timed, work, settings.repeats, device))
            if spent is not None:
                seconds = spent * scale / 1e3
                speed = batch * settings.length / seconds
                how = "timed" if scale == 1 else f"scaled by {scale:g}"
                row = {"batch": batch, "model": name, "passes": steps, "seconds": seconds, "tokens/s": int(speed)}
                rows.append({**row, "how": how})
        report(
            f"sampling: {settings.preset}, |V| = {settings.vocab}, length {settings.length}",
            rows,
            device,
            settings.out and settings.out / "sampling.json",
        )


def timed(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    work()
    return statistics.median(milliseconds(lambda _: work(), n, device) for n in range(repeats))


Case = tuple[str, int, Callable[[], Any], float]


def cases(settings: SamplingBenchmark, batch: int, device: torch.device) -> list[Case]:
    """(name, passes, work, factor to the whole) of each generation."""
    made: list[Case] = []
    student, teacher = (velocity(settings, device, step_size=kind) for kind in (True, False))
    for steps in settings.steps:
        made.append(("student", steps, partial(generate, student, batch, grid(steps), device), 1.0))
    part = min(settings.timed, settings.teacher_steps)
    # the first steps of the long grid, then one to the end: `part` passes in all
    points = (*grid(settings.teacher_steps)[:part], 1.0)
    factor = settings.teacher_steps / part
    made.append(("teacher", settings.teacher_steps, partial(generate, teacher, batch, points, device), factor))
    passes = min(settings.timed, settings.length)
    whole = settings.length / passes
    ready = guarded("autoregressive", lambda: writer(settings, batch, passes, device))
    if ready is not None:
        made.append(("autoregressive", settings.length, ready, whole))
    return made


def velocity(settings: SamplingBenchmark, device: torch.device, *, step_size: bool) -> Velocity:
    spec = random_spec(settings.preset, settings.vocab, settings.length, step_size=step_size)
    torch.manual_seed(0)
    net = spec.network().to(device).eval().requires_grad_(False)
    if settings.compile:
        compile_in_place(net, by_block=False)
        if device.type == "cuda":
            setattr(net, "hidden", Replayed(fixed(net.hidden), net))  # noqa: B010
    return Velocity(spec, net, spec.flow_source(), spec.flow_schedule())


def fixed(body: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A compiled body that is told its shapes never change: else it would be compiled for any, which is slower."""

    def hidden(*inputs: Tensor | None) -> Tensor:
        for x in inputs:
            if x is not None:
                torch._dynamo.mark_static(x)
        return body(*inputs)

    return hidden


def generate(model: Velocity, batch: int, points: tuple[float, ...], device: torch.device) -> Tensor:
    noise = RowNoise(0, torch.arange(batch, device=device))
    x_0 = model.source.draw((batch, model.spec.length), noise, device)
    jump = jump_from("cumulative" if model.spec.step_size else "euler", model.schedule, model.source)
    with autocast(use_bf16("auto", device), device):
        return solve(model, x_0, points, jump, noise).tokens


@torch.no_grad()
def writer(settings: SamplingBenchmark, batch: int, passes: int, device: torch.device) -> Callable[[], Any]:
    """Writes the last `passes` tokens of a text, one after another, with a cache of the whole length.

    On a GPU the step is captured once and replayed, as anyone in a hurry would do: launching its kernels one by one
    would take longer than running them.
    """
    torch.manual_seed(0)
    net = CausalNet(NetSettings(preset=settings.preset).shape(), vocab=settings.vocab)
    net = net.to(device).eval().requires_grad_(False)
    bf16 = use_bf16("auto", device)
    if bf16:
        net = net.to(torch.bfloat16)  # no cast of weights in every step
    cache = net.cache(batch, settings.length, torch.bfloat16 if bf16 else torch.float32)
    tokens = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    place = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step() -> None:
        with autocast(bf16, device):
            running = net.step(tokens, place, cache).float().softmax(-1).cumsum(-1)
        lots = torch.rand(batch, 1, device=device) * running[:, -1:]
        tokens.copy_(torch.searchsorted(running, lots).clamp_(max=settings.vocab - 1))
        place.add_(1)

    turn = captured(step) if device.type == "cuda" else step

    def work() -> None:
        place.fill_(settings.length - passes)
        for _ in range(passes):
            turn()

    return work
