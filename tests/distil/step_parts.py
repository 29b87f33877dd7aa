"""Whole optimisation steps of tiny networks whose weights are a formula, so that their losses can be written down.

No generator of torch has a part in them: weights are sines of their place, tokens and noise come from `RowNoise`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training import DFM, student_settings, student_task
from tsdfm.compass.frequency import frequency_bins
from tsdfm.compass.model import Compass
from tsdfm.compass.negatives import Kit, Negatives
from tsdfm.compass.network import spec_from
from tsdfm.compass.settings import CompassLoop, CompassOptim, CompassSettings, NegativeSettings
from tsdfm.compass.task import CompassTask
from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim
from tsdfm.engine.distributed import Processes
from tsdfm.engine.learner import Learner
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.flow import RowNoise
from tsdfm.methods.dfm import DFMSettings
from tsdfm.methods.sdtt import METHOD as SDTT
from tsdfm.methods.sdtt import SDTTLoop, SDTTOptim, SDTTSettings
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.tokens.loader import HostBatch

SHAPE = Shape(width=16, depth=2, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)
SPEC = VelocitySpec(
    shape=SHAPE, vocab=37, source="uniform", schedule="poly:1", length=8, anchor=1, tokenizer="abc", step_size=True
)
MDLM = replace(SPEC, source="mask", logits="subs", time=False)  # what their students are told and answer
DUO = replace(SPEC, logits="others", clock="sigma")
ROWS = 6
NOWHERE = Path("nowhere")


@torch.no_grad()
def by_formula(net: nn.Module, phase: float = 0.0, size: float = 0.35) -> Any:
    """Weights `size`·sin(1.7 i + n + phase) at place i of parameter number n; norms about 1."""
    for n, p in enumerate(net.parameters()):
        wave = torch.sin(1.7 * torch.arange(p.numel(), dtype=torch.float64) + n + phase).view_as(p)
        p.copy_(1.0 + 0.2 * wave if p.ndim == 1 and bool((p == 1).all()) else size * wave)
    return net


def batch_of(step: int, device: torch.device) -> HostBatch:
    """Rows of text as random as their numbers."""
    numbers = torch.arange(step * ROWS, (step + 1) * ROWS)
    tokens = (RowNoise(7, numbers, 50).uniform((ROWS, SPEC.length)) * SPEC.vocab).long()
    return HostBatch(tokens.to(device), numbers.to(device), numbers)


def student(policy: str, device: torch.device, about: VelocitySpec = SPEC, **given: Any) -> Learner:
    """FS-DFM (`blind`) or TS-DFM (`sequence-to-token`)."""
    plan = student_settings(
        tokens=NOWHERE,
        init_from=NOWHERE,
        out=NOWHERE,
        policy=policy,  # type: ignore[arg-type]
        compass=NOWHERE,
        level_weights=(1, 2, 2, 1, 0, 0, 0, 0, 0, 0, 1),  # steps large enough to navigate
        share=0.5,
        navigate=NavigateSettings(k=5, tau=0.1),
        loop=StudentLoop(batch=ROWS, steps=10, seed=4, precision="fp32"),
        optim=StudentOptim(lr=1e-3, warmup=1, ema=0.9),
    )
    energy = spec_from(about, replace(SHAPE, depth=1), "nce")
    net = by_formula(energy.network(), 2.0).to(device).eval().requires_grad_(False)
    task = student_task(replace(plan, **given), about, compass=Compass(energy, net))
    by_formula(task.model)
    return Learner(task, Processes(device=device), plan.loop, plan.optim)


def teacher(device: torch.device) -> Learner:
    plan = DFMSettings(
        tokens=NOWHERE,
        out=NOWHERE,
        loop=LoopSettings(batch=ROWS, steps=10, seed=4, precision="fp32"),
        optim=OptimSettings(lr=1e-3, warmup=1, ema=0.9),
    )
    task = DFM.task(plan, replace(SPEC, step_size=False), None)
    by_formula(task.model)
    return Learner(task, Processes(device=device), plan.loop, plan.optim)


def compass(device: torch.device, **corrupt: Any) -> Learner:
    plan = CompassSettings(
        tokens=NOWHERE,
        teacher=NOWHERE,
        out=NOWHERE,
        negatives=6,
        corrupt=NegativeSettings(bins=4, levels=(0.5, 0.25), **corrupt),
        loop=CompassLoop(batch=ROWS, steps=10, seed=4, precision="fp32"),
        optim=CompassOptim(lr=1e-3, warmup=1, ema=0.9),
    )
    plain, world = replace(SPEC, step_size=False), Processes(device=device)
    net = by_formula(plain.network(), 1.0).to(device).eval().requires_grad_(False)
    judge = Velocity(plain, net, plain.flow_source(), plain.flow_schedule())
    about = spec_from(plain, replace(SHAPE, depth=1), "nce")
    bins = frequency_bins(np.arange(1, SPEC.vocab + 1) ** 2, plan.corrupt.bins).to(device)
    made = Negatives(Kit(about.flow_source(), bins, plan.corrupt, judge, plan.t_floor))
    task = CompassTask(plan, about, made, None, world)
    by_formula(task.model, 2.0)
    return Learner(task, world, plan.loop, plan.optim)


def sdtt(device: torch.device, **given: Any) -> Learner:
    """SDTT from a teacher that is another network than the student, so that their divergence is no tiny number."""
    plan = SDTTSettings(
        tokens=NOWHERE,
        init_from=NOWHERE,
        out=NOWHERE,
        start_steps=4,
        round=10,
        loop=SDTTLoop(batch=ROWS, steps=10, seed=4, precision="fp32"),
        optim=SDTTOptim(lr=1e-3, warmup=1, ema=0.9),
        **given,
    )
    about = replace(SPEC, source="mask", step_size=False, logits="subs")
    task = SDTT.task(plan, about, None, Processes(device=device))
    by_formula(task.model)
    learner = Learner(task, Processes(device=device), plan.loop, plan.optim)
    by_formula(task.teacher.net, 1.0)  # type: ignore[attr-defined]
    return learner


MAKERS = {
    "sdtt": sdtt,
    "sdtt-forward": lambda device: sdtt(device, divergence="forward"),
    "fs-dfm": lambda device: student("blind", device, divergence="forward"),
    "ts-dfm": lambda device: student("sequence-to-token", device, divergence="forward"),
    "fs-dfm-reverse": lambda device: student("blind", device, divergence="reverse"),
    "ts-dfm-reverse": lambda device: student("sequence-to-token", device, divergence="reverse"),
    "ts-dfm-mdlm": lambda device: student("sequence-to-token", device, MDLM),
    "ts-dfm-duo": lambda device: student("sequence-to-token", device, DUO),
    "teacher": teacher,
    "compass": compass,
}


def losses(name: str, device: torch.device, steps: int = 2) -> list[tuple[float, float]]:
    """(loss, gradient norm) of the first steps."""
    learner, found = MAKERS[name](device), []
    for step in range(steps):
        values, bad = learner.update(batch_of(step, device), step)
        assert not bool(bad)
        found.append((float(values["loss"]), float(values["grad_norm"])))
    return found
