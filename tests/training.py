"""Settings, tasks and trainings of the methods, as the tests of several rooms make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsdfm.methods import Method, method, names, student_method
from tsdfm.methods.dfm import METHOD as DFM
from tsdfm.methods.dfm import DFMSettings
from tsdfm.settings import build

__all__ = ["DFM", "DFMSettings", "many_step", "named_settings", "student_of", "student_settings"]
__all__ += ["student_task", "train", "trainer"]


def student_settings(**given: Any) -> Any:
    """The settings of FS-DFM (policy blind, or none) or TS-DFM (any other)."""
    kind, values = student_method(given)
    return method(kind).settings(**values)


def student_of(plain: dict[str, Any]) -> Any:
    """The same from plain values."""
    kind, values = student_method(plain)
    return build(method(kind).settings, values)


def named_settings(plain: dict[str, Any]) -> Any:
    """The settings of the `method` that plain values name; without one, FS-DFM's or TS-DFM's."""
    if "method" not in plain:
        return student_of(plain)
    return build(method(plain["method"]).settings, {name: value for name, value in plain.items() if name != "method"})


def trainer(settings: Any) -> Method:
    """The method that these settings belong to."""
    return next(found for found in map(method, names()) if found.settings is type(settings))


def train(settings: Any) -> Path:
    """Train by the method that these settings belong to."""
    return trainer(settings).train(settings)


def student_task(settings: Any, spec: Any, valid: Any = None, *, teacher: Any = None, compass: Any = None) -> Any:
    """A distillation's task of models that are there instead of on a disk."""
    from tsdfm.distil.chain import Chain
    from tsdfm.distil.floor import FromData, FromTeacher
    from tsdfm.distil.navigated import NavigatedChain
    from tsdfm.distil.parts import Parts
    from tsdfm.distil.task import StudentTask
    from tsdfm.distil.teachers import Average

    found: Any = trainer(settings)
    reverse = settings.divergence == "reverse"
    navigated = hasattr(settings, "navigate")
    parts = Parts(
        times=found.times(settings),
        teacher=Average(),
        rollout=NavigatedChain(settings, spec, compass) if navigated else Chain(settings, spec),
        floor=FromTeacher(teacher, reverse) if settings.target == "teacher" else FromData(spec),
    )
    return StudentTask(settings, spec, valid, parts, found.bound())


def many_step(name: str, tokens: Path, out: Path, steps: int = 30, seed: int = 0, **given: Any) -> Path:
    """A small model of a many-step method, trained for as long as it takes to know a word from another."""
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods import method
    from tsdfm.nn.settings import NetSettings

    settings = method(name).settings(
        tokens=tokens,
        out=out,
        eval_rows=8,
        eval_times=2,
        net=NetSettings(width=32, depth=1, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=steps, batch=16, device="cpu", eval_every=0, save_every=0, seed=seed),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
        **given,
    )
    return method(name).train(settings)
