"""From what was named on the command line to trajectories: read from files, or sampled from models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.samples.trajectory import Trajectory
from tsdfm.store.bundle import Bundle, default_model, find_shipped, unshipped
from tsdfm.store.checkpoint import has_checkpoint
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest
from tsdfm.view.settings import ViewSettings


def find_trajectories(settings: ViewSettings) -> list[Trajectory]:
    """Everything the paths lead to, in their order."""
    return [way for path in settings.paths or (default_model(),) for way in at(path, settings)]


def at(path: Path, settings: ViewSettings) -> list[Trajectory]:
    """The trajectories of one path. Only what has to be sampled loads a model."""
    if path.is_file():
        return [Trajectory.load(path)]
    shipped = find_shipped(path)
    if shipped is not None:
        return played(*shipped, settings)
    if not path.is_dir():
        raise UserError(
            f"nothing at {path}{unshipped(path)}: give a pipeline folder, a run folder, a bundle or a trajectory file"
        )
    if is_model(path):
        return sampled([path], settings.compass, settings)
    recorded = sorted((path / "report" / "trajectories").glob("*.json"))
    if recorded and not settings.sample:
        return [Trajectory.load(file) for file in recorded]
    models = [folder.parent for folder in sorted(path.glob(f"*/{MANIFEST}")) if is_model(folder.parent)]
    if not models:
        raise UserError(f"{path} holds neither trajectories nor trained models: give what `tsdfm pipeline` made")
    return [way for model in models for way in sampled([model], settings.compass or beside(model), settings)]


def is_model(folder: Path) -> bool:
    """Is it a run or a checkpoint of a model that writes?"""
    if not (folder / MANIFEST).is_file():
        return False
    return isinstance(read_manifest(folder).get("model"), dict) and has_checkpoint(folder)


def beside(model: Path) -> Path | None:
    """The pipeline's compass for a model: OUT/compass-<source>, where there is one that has been trained."""
    source = read_manifest(model)["model"].get("source")
    compass = model.parent / f"compass-{source}"
    return compass if (compass / MANIFEST).is_file() and (compass / "checkpoints").is_dir() else None


def played(bundle: Bundle, role: str | None, settings: ViewSettings) -> list[Trajectory]:
    """A bundle's teacher against its student, or the one that was named, scored by its compass.

    Each writes as it does by default: the student at the temperature and with the jump its bundle asks for, the teacher
    at T = 1. Another temperature than 1 stands beside the name.
    """
    from tsdfm.samples.defaults import defaults_of
    from tsdfm.samples.model import load
    from tsdfm.view.record import record

    own = defaults_of(bundle.folder)
    compass = settings.compass or (bundle.folder / "compass" if "compass" in bundle.roles else None)
    ways = []
    for each in [role] if role else [name for name in ("teacher", "student") if name in bundle.roles]:
        jump, temperature = (own.jump, own.temperature) if each == "student" else ("auto", 1.0)
        model = load(bundle.folder / each)
        way = record(
            model,
            compass,
            steps=settings.steps,
            n=settings.n,
            seed=settings.seed,
            temperature=temperature,
            jump=jump,
        )
        ways.append(way if temperature == 1.0 else replace(way, method=f"{way.method}, T = {temperature:g}"))
    return ways


def sampled(models: Sequence[Path], compass: Path | None, settings: ViewSettings) -> list[Trajectory]:
    """Sample models, all from the same seed."""
    from tsdfm.samples.model import load
    from tsdfm.view.record import record

    return [record(load(model), compass, steps=settings.steps, n=settings.n, seed=settings.seed) for model in models]
