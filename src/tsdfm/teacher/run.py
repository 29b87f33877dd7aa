"""The teacher stage: tokens → a run folder with checkpoints, metrics, the tokenizer and a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm.engine.distributed import join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.errors import UserError
from tsdfm.nn.velocity import VelocitySpec, load_velocity
from tsdfm.store.bundle import on_disk
from tsdfm.teacher.settings import TeacherSettings
from tsdfm.teacher.task import TeacherTask
from tsdfm.tokens.rows import TokenRows, valid_rows


def run(settings: TeacherSettings) -> Path:
    """Train a teacher and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    spec = spec_for(settings, rows)
    with join(settings.loop.device) as world:
        task = TeacherTask(settings, spec, valid_rows(settings.tokens))
        origin = settings.init_from
        begin = None if origin is None else lambda: start_from(task, spec, origin)
        return train_rows(task, rows, settings, record_for(settings, spec), world, begin=begin)


def spec_for(settings: TeacherSettings, rows: TokenRows) -> VelocitySpec:
    """The network these settings ask for on these rows."""
    return VelocitySpec(
        shape=settings.net.shape(),
        vocab=rows.vocab_size,
        source=settings.source,
        schedule=settings.schedule,
        length=rows.length,
        anchor=rows.anchor,
        tokenizer=rows.fingerprint,
    )


def record_for(settings: TeacherSettings, spec: VelocitySpec) -> Record:
    """What the run's manifests say, and what a resumed run must share with its checkpoint."""
    same = replace(spec, shape=replace(spec.shape, checkpoint=False))  # costs time, saves memory, changes no number
    origin = on_disk(settings.init_from, "init_from", settings.START) if settings.init_from is not None else None
    start = {"init_from": origin} if origin is not None else {}
    return Record(
        stage="teacher",
        settings=settings,
        inputs={"tokens": settings.tokens, **start},
        parent=origin,
        extra={"model": spec.plain()},
        identity={"model": same.plain(), "loss": settings.loss, "time_power": settings.time_power},
    )


def start_from(task: TeacherTask, spec: VelocitySpec, path: Path) -> None:
    """Begin a new run with the averaged weights of another, or of a bundle's teacher."""
    other = load_velocity(path, role=TeacherSettings.START)
    spec.match(other.spec, f"the model to start from, {path},")
    try:
        task.model.load_state_dict(other.net.state_dict())
    except RuntimeError:
        raise UserError(f"{path} has a network of another size: use the same net settings to start from it") from None
