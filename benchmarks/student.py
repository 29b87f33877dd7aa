"""The distillation step, blind (FS-DFM) against navigated (TS-DFM): `python -m benchmarks student`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import Step, measure, report, stepper, world
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
    compile: bool = option(True, "torch.compile the networks")
    warm: int = option(5, "steps before timing")
    repeats: int = option(20, "timed steps of each variant")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "also write the rows as JSON")


def run(settings: StudentBenchmark) -> None:
    """Time every variant at every batch size."""
    here = world(settings.device)
    rows = []
    for batch in settings.batch:
        variants = {"fs-dfm": maker(settings, batch, None)}
        for tau in settings.tau:
            for k in settings.k:
                variants[f"ts-dfm τ={tau} K={k}"] = maker(settings, batch, NavigateSettings(tau=tau, k=k))
        timings = measure(variants, here.device, settings.warm, settings.repeats)
        blind = timings["fs-dfm"].median
        for name, found in timings.items():
            rows.append(
                {
                    "batch": batch,
                    "step": name,
                    "ms": found.median,
                    "fastest": found.low,
                    "slowest": found.high,
                    "to fs-dfm": found.median / blind,
                    "tokens/s": int(batch * settings.length / found.median * 1e3),
                    "peak GiB": found.peak,
                }
            )
    title = f"student step: {settings.preset}, |V| = {settings.vocab}, length {settings.length}"
    report(title, rows, here.device, settings.out)


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
