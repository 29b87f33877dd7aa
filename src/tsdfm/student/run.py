"""The student stage: tokens, a teacher or student to start from, and for TS-DFM a compass → a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tsdfm.compass.model import Compass, load_compass
from tsdfm.engine.distributed import World, join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.errors import UserError
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.velocity import Velocity, VelocitySpec, check_rows, load_velocity, spec_in
from tsdfm.settings import to_dict
from tsdfm.store.bundle import Found, find_weights, on_disk
from tsdfm.store.checkpoint import Store, read_state
from tsdfm.store.manifest import input_sha256
from tsdfm.student.settings import StudentSettings
from tsdfm.student.start import start_from
from tsdfm.student.task import StudentTask
from tsdfm.tokens.loader import with_numbers
from tsdfm.tokens.rows import TokenRows, valid_rows

FREE = {"tokens", "init_from", "out", "compass", "teacher", "name", "checkpoint", "probe_every", "resume"}
FREE |= {"eval_rows", "eval_times", "allow_changed", "record", "loop", "optim", "navigate"}  # what a resume may change


def run(settings: StudentSettings) -> Path:
    """Distil a student and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    origin = start_of(settings)
    spec = spec_for(settings, spec_in(origin.manifest, origin.place))
    check_rows(spec, rows, "init_from")
    with join(settings.loop.device) as world:
        teacher, compass = load_teacher(settings, spec, world), load_guide(settings, spec, world)
        task = StudentTask(settings, spec, valid_rows(settings.tokens), teacher=teacher, compass=compass)
        return train_rows(
            task,
            rows,
            settings,
            record_for(settings, spec),
            world,
            begin=lambda: begin(task, settings, origin),
            feeder=with_numbers,
        )


def start_of(settings: StudentSettings) -> Found:
    """What the student starts from: the averaged weights of a run, or a bundle's (its student's, or FOLDER/teacher)."""
    return find_weights(settings.init_from, settings.START, which="ema", choose="newest")


def spec_for(settings: StudentSettings, origin: VelocitySpec) -> VelocitySpec:
    """The network of what the student starts from, with step-size conditioning."""
    dropout = origin.shape.dropout if settings.dropout is None else settings.dropout
    return replace(origin, step_size=True, shape=replace(origin.shape, dropout=dropout, checkpoint=settings.checkpoint))


def load_teacher(settings: StudentSettings, spec: VelocitySpec, world: World) -> Velocity | None:
    """The frozen teacher, where the smallest step learns from it."""
    if settings.target != "teacher":
        return None
    path = teacher_path(settings)
    teacher = load_velocity(path, world.device, role="teacher")
    spec.match(teacher.spec, f"the teacher {path}")
    return teacher


def teacher_path(settings: StudentSettings) -> Path:
    """Where the frozen teacher is."""
    if settings.teacher is not None:
        return settings.teacher
    origin = start_of(settings)
    if spec_in(origin.manifest, origin.place).step_size:
        raise UserError("target teacher needs --teacher, as init_from is a student")
    return settings.init_from


def load_guide(settings: StudentSettings, spec: VelocitySpec, world: World) -> Compass | None:
    """The compass, where the policy asks for one (the random control may have one to be compared with)."""
    if settings.compass is None or settings.policy == "blind":
        return None
    compass = load_compass(settings.compass, world.device)
    compass.match(spec, f"the model in {settings.init_from}")
    return compass


def begin(task: StudentTask, settings: StudentSettings, origin: Found) -> None:
    """The weights of step 0: the averaged ones of what the student starts from."""
    assert isinstance(task.model, DDiT)
    known = spec_in(origin.manifest, origin.place).step_size
    fit_new = settings.fresh == "fit"
    start_from(task.model, origin.weights(), step_size=known, fit=fit_new, where=str(settings.init_from))


def record_for(settings: StudentSettings, spec: VelocitySpec) -> Record:
    """What the run's manifests say, and what a resumed run must share with its checkpoint."""
    inputs = inputs_of(settings)
    same = replace(spec, shape=replace(spec.shape, checkpoint=False))  # costs time, saves memory, changes no number
    plain = to_dict(settings)
    identity: dict[str, Any] = {"model": same.plain()}
    identity |= {name: value for name, value in plain.items() if name not in FREE}
    if settings.policy != "blind":
        identity["navigate"] = plain["navigate"]
    identity["inputs"] = known_inputs(settings, inputs)
    return Record(
        stage=settings.stage,
        settings=settings,
        inputs=inputs,
        parent=inputs["init_from"],
        extra={"model": spec.plain()},
        identity=identity,
    )


def inputs_of(settings: StudentSettings) -> dict[str, Path]:
    """Everything the training reads."""
    inputs = {"tokens": settings.tokens}
    if settings.target == "teacher":
        inputs["teacher"] = teacher_path(settings)
    if settings.compass is not None and settings.policy != "blind":
        inputs["compass"] = settings.compass
    start = {"init_from": on_disk(settings.init_from, "init_from", settings.START)}
    return start | {name: on_disk(path, name) for name, path in inputs.items()}


def known_inputs(settings: StudentSettings, inputs: dict[str, Path]) -> dict[str, str]:
    """The hashes a resumed run is held to: of the inputs as they are or, with `allow_changed`, as they were."""
    newest = Store(settings.out).newest()
    if settings.allow_changed and newest is not None:
        return dict(read_state(newest)["identity"]["inputs"])
    return {name: input_sha256(path) for name, path in inputs.items()}
