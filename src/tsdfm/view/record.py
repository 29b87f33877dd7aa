"""Record trajectories: the same seed through several models, each state scored by a compass if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.samples.guide import compass_for
from tsdfm.samples.model import TextModel, load
from tsdfm.samples.trajectory import Trajectory


def record_trajectories(
    models: Sequence[Path], compass: Path | None, out: Path, *, steps: int = 8, n: int = 3, seed: int = 0
) -> list[Path]:
    """Sample `n` texts with every model and write OUT/<method>-<source>-<steps>.json for each.

    All start from the noise of `seed`: models of one source and length start from the same states. The compass must
    belong to the models (their source, tokenizer and vocabulary).
    """
    paths: dict[Path, Path] = {}
    for place in models:
        way = record(load(place), compass, steps=steps, n=n, seed=seed)
        path = out / f"{way.method}-{way.source}-{way.steps}.json"
        if path in paths:
            raise UserError(f"{paths[path]} and {place} are both called {way.method}: give one of them another --name")
        paths[path] = place
        way.save(path)
    return list(paths)


def record(
    model: TextModel,
    compass: Path | None,
    *,
    steps: int,
    n: int,
    seed: int,
    temperature: float = 1.0,
    jump: str = "auto",
) -> Trajectory:
    """The way of `n` texts of one model."""
    scorer = compass_for(compass, model.velocity, f"the {model.method} to be scored") if compass else None
    made = model.sample(n, steps, seed, temperature=temperature, jump=jump, trajectory=True, compass=scorer).trajectory
    assert made is not None
    return made
