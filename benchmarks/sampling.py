"""Generation: few steps against many, and against an autoregressive transformer: `python -m benchmarks sampling`.

Student and teacher write through `TextModel.sample`, as a user's do. Long generations are timed over part of their
passes and scaled; the row says so. The last pass of a grid, in which every position may move, is timed by itself and
counted once: it costs more than the others.

The floor is the arithmetic that cannot be spared: the network's body for every token of every pass, and the head where
a token may move (`jump.needs`), at `peak` TFLOP/s.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from benchmarks.harness import Clock, Ledger, guarded, milliseconds, random_spec, reserved, say, world
from tsdfm.engine.graphs import captured
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.flow import LeaveJump, grid
from tsdfm.nn.causal import CausalNet
from tsdfm.nn.ddit import flops_per_token
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import Velocity
from tsdfm.samples.model import TextModel
from tsdfm.settings import option
from tsdfm.tokens.tokenizer import ByteTokenizer

Model = Literal["student", "teacher", "autoregressive"]


@dataclass(frozen=True, kw_only=True)
class SamplingBenchmark:
    """What to time."""

    preset: str = option("170m", "size of all networks")
    vocab: int = option(50257, "|V|")
    length: int = option(1024, "tokens of a text")
    batch: tuple[int, ...] = option((1, 32), "texts at a time")
    steps: tuple[int, ...] = option((8, 16, 32), "network passes of student and teacher")
    teacher_steps: int = option(1024, "a longer grid for both; 0 for none")
    models: tuple[Model, ...] = option(get_args(Model), "which, in this order")
    timed: int = option(32, "passes of a long generation that are really timed")
    repeats: int = option(3, "timed generations")
    compile: bool = option(True, "compile and record the networks; false: only record them")
    quick: bool = option(True, "false neither compiles nor records")
    peak: float = option(790.0, "TFLOP/s that the floor reckons with: what bf16 products reach on an H200")
    limit: float = option(300.0, "seconds at most: what does not fit is left out")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the tables as JSON")


Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One generation: `make` builds what takes `timed` passes of `passes`, the last of which takes what `last` does."""

    model: str
    batch: int
    passes: int
    timed: int
    make: Callable[[], Work]
    last: Work | None
    flops: float

    @property
    def what(self) -> str:
        return f"{self.model}, {self.passes} passes, batch {self.batch}"

    def seconds(self, work: Work, repeats: int, device: torch.device) -> float:
        """Of the whole generation, the median."""
        part = median(work, repeats, device)
        if self.timed == self.passes:
            return part
        if self.last is None:
            return part * self.passes / self.timed
        end = median(self.last, repeats, device)
        return end + (part - end) * (self.passes - 1) / (self.timed - 1)


@dataclass
class Costs:
    """What the next case will take, judging by those before it."""

    known: dict[tuple[str, int], float] = field(default_factory=dict)  # seconds of a pass, by model and batch size
    starts: dict[bool, float] = field(default_factory=dict)  # of the first case of these, autoregressive ones or not

    def start(self, model: str) -> float:
        """Seconds for the first case of a model with a batch size: it builds, compiles and records."""
        return self.starts.get(model == "autoregressive", 10.0)

    def of(self, case: Case, repeats: int) -> float:
        """Seconds for a case."""
        a_pass = self.known.get((case.model, case.batch))
        if a_pass is None:
            return self.start(case.model)
        return a_pass * (repeats + 1) * (case.timed + (case.last is not None and case.timed < case.passes))

    def learn(self, case: Case, spent: float, seconds: float | None) -> None:
        """`spent` on a case, for a generation of so many `seconds` (none where it failed)."""
        if (case.model, case.batch) not in self.known:
            self.starts[case.model == "autoregressive"] = spent
        if seconds is not None:
            self.known[case.model, case.batch] = seconds / case.passes


def run(settings: SamplingBenchmark) -> None:
    """Time every model with every batch size."""
    device, clock, costs = world(settings.device).device, Clock(settings.limit), Costs()
    title = f"sampling: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    place = settings.out and settings.out / "sampling.json"
    table = Ledger(title, ("batch", "model", "passes"), device, place, goes_on=False)
    for name in settings.models:
        if not clock.allows(costs.start(name), name):
            table.leave(name)
            continue
        guarded(name, partial(one, name, settings, clock, costs, table))
        gc.collect()  # recordings of the last model go, and their memory with them
        if device.type == "cuda":
            torch.cuda.empty_cache()
    table.rows.sort(key=lambda row: int(row["batch"]))
    table.show()


def one(name: str, settings: SamplingBenchmark, clock: Clock, costs: Costs, table: Ledger) -> None:
    """The rows of one model, each kept at once."""
    device, start = table.device, time.perf_counter()
    before = reserved(device)
    for case in cases(name, settings, device):
        if not clock.allows(costs.of(case, settings.repeats), case.what):
            table.leave(case.what)
            continue
        work = guarded(case.what, case.make)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = work and guarded(case.what, partial(case.seconds, work, settings.repeats, device))
        costs.learn(case, time.perf_counter() - start, seconds)
        start = time.perf_counter()
        if seconds is None:
            continue
        row: dict[str, Any] = {"batch": case.batch, "model": name, "passes": case.passes, "seconds": float(seconds)}
        row["tokens/s"] = int(case.batch * settings.length / seconds)
        row["peak GiB"] = None
        row["of the floor"] = None
        if device.type == "cuda":
            row["peak GiB"] = (torch.cuda.max_memory_reserved(device) - before) / 2**30
            row["of the floor"] = f"{case.flops * case.batch / (settings.peak * 1e12) / seconds:.1%}"
        row["how"] = "timed" if case.timed == case.passes else f"scaled from {case.timed}"
        table.add([row])
        say(f"  {case.what}: {seconds:.3g} s, {clock.left:.0f} s left")


def median(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds, once it is warm."""
    work()
    return statistics.median(milliseconds(lambda _: work(), n, device) for n in range(repeats)) / 1e3


def cases(name: str, settings: SamplingBenchmark, device: torch.device) -> Iterator[Case]:
    """What is timed of one model: few texts at a time, then many."""
    if name == "autoregressive":
        shape = NetSettings(preset=settings.preset).shape()
        flops = settings.length * flops_per_token(shape, settings.vocab, settings.length)
        timed = min(settings.timed, settings.length)
        for batch in settings.batch:
            make = partial(writer, settings, batch, timed, device)
            yield Case(name, batch, settings.length, timed, make, None, flops)
        return
    model = text_model(settings, device, step_size=name == "student")
    for batch in settings.batch:
        for steps in sorted({*settings.steps, settings.teacher_steps} - {0}):
            timed = min(max(settings.timed, 2), steps)
            points, flops = grid(steps), needed(model, grid(steps))
            # the first passes of the grid, then one to the end
            work = partial(model.sample, n=batch, times=(*points[:timed], 1.0), batch=batch)
            last = partial(model.sample, n=batch, steps=1, batch=batch)
            yield Case(name, batch, steps, timed, partial(ready, work), last, flops)


def ready(work: Work) -> Work:
    return work


def text_model(settings: SamplingBenchmark, device: torch.device, *, step_size: bool) -> TextModel:
    """A network of random weights that writes; its tokenizer is there for the form."""
    spec = random_spec(settings.preset, settings.vocab, settings.length, step_size=step_size)
    torch.manual_seed(0)
    net = spec.network().to(device).eval().requires_grad_(False)
    velocity = Velocity(spec, net, spec.flow_source(), spec.flow_schedule())
    quick = "off" if not settings.quick else "compile" if settings.compile else "auto"
    return TextModel(velocity, ByteTokenizer(), "random", use_bf16("auto", device), quick)


def needed(model: TextModel, points: tuple[float, ...]) -> float:
    """Floating-point operations for one text along a grid: the body always, the head at the expected positions."""
    spec, jump = model.velocity.spec, model.velocity.jump()
    assert isinstance(jump, LeaveJump)
    head = 2.0 * spec.shape.width * spec.vocab
    body = flops_per_token(spec.shape, spec.vocab, spec.length) - head
    x, one = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.float64)
    times = [torch.tensor([[a], [b - a]], dtype=torch.float64) for a, b in pairwise(points)]
    looked_at = sum([float(jump.leave(x, one, t, h)) for t, h in times])
    return spec.length * ((len(points) - 1) * body + looked_at * head)


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
        uniforms = torch.rand(batch, 1, device=device) * running[:, -1:]
        tokens.copy_(torch.searchsorted(running, uniforms).clamp_(max=settings.vocab - 1))
        place.add_(1)

    turn = captured(step) if device.type == "cuda" else step

    def work() -> None:
        place.fill_(settings.length - passes)
        for _ in range(passes):
            turn()

    return work
