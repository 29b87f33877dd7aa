"""The stage of every distillation: tokens, a model to start from and what the method needs besides → a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tsdfm.distil.parts import Floor, Parts, Rollout, Teacher, Times
from tsdfm.distil.settings import StudentSettings
from tsdfm.distil.start import start_from
from tsdfm.distil.task import StudentTask
from tsdfm.engine.distributed import Processes, join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.flow import Bound
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.velocity import VelocitySpec, check_rows, spec_in
from tsdfm.settings import to_dict
from tsdfm.store.bundle import FoundWeights, find_weights, on_disk
from tsdfm.store.checkpoint import Store, read_state
from tsdfm.store.manifest import input_sha256
from tsdfm.tokens.loader import with_numbers
from tsdfm.tokens.rows import TokenRows, valid_rows

FREE = {"tokens", "init_from", "out", "compass", "teacher", "name", "checkpoint", "probe_every", "resume"}
FREE |= {"eval_rows", "eval_times", "allow_changed", "record", "loop", "optim"}  # what a resume may change


class Distils(Protocol):
    """What this stage asks of a method (`tsdfm.methods.StudentMethod`)."""

    name: ClassVar[str]
    label: ClassVar[str]

    def words(self) -> dict[str, Any]: ...

    def then(self, settings: Any) -> tuple[str | Path, ...]: ...

    def bound(self) -> Bound | None: ...

    def times(self, settings: Any) -> Times: ...

    def teacher(self, settings: Any, spec: VelocitySpec, world: Processes) -> Teacher: ...

    def rollout(self, settings: Any, spec: VelocitySpec, world: Processes) -> Rollout: ...

    def floor(self, settings: Any, spec: VelocitySpec, world: Processes) -> Floor: ...

    def inputs(self, settings: Any) -> dict[str, Path]: ...


def train(settings: StudentSettings, method: Distils) -> Path:
    """Distil a student by `method` and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    origin = start_of(settings)
    spec = spec_for(settings, spec_in(origin.manifest, origin.place), method)
    check_rows(spec, rows, "init_from")
    with join(settings.loop.device) as world:
        task = task_for(settings, spec, method, world, valid_rows(settings.tokens))
        return train_rows(
            task,
            rows,
            settings,
            record_for(settings, spec, method),
            world,
            begin=lambda: begin(task, settings, origin),
            feeder=with_numbers,
        )


def task_for(
    settings: StudentSettings, spec: VelocitySpec, method: Distils, world: Processes, valid: TokenRows | None
) -> StudentTask:
    """What the training loop is given."""
    parts = Parts(
        times=method.times(settings),
        teacher=method.teacher(settings, spec, world),
        rollout=method.rollout(settings, spec, world),
        floor=method.floor(settings, spec, world),
        reverse=settings.divergence == "reverse",
    )
    return StudentTask(settings, spec, valid, parts, method.bound())


def start_of(settings: StudentSettings) -> FoundWeights:
    """What the student starts from: the averaged weights of a run, or a bundle's (its student's, or FOLDER/teacher)."""
    return find_weights(settings.init_from, settings.START, which="ema", choose="newest")


def spec_for(settings: StudentSettings, origin: VelocitySpec, method: Distils) -> VelocitySpec:
    """The network of what the student starts from, told what the method tells it."""
    dropout = origin.shape.dropout if settings.dropout is None else settings.dropout
    shape = replace(origin.shape, dropout=dropout, checkpoint=settings.checkpoint)
    return replace(origin, shape=shape, **method.words())


def begin(task: StudentTask, settings: StudentSettings, origin: FoundWeights) -> None:
    """The weights of step 0: the averaged ones of what the student starts from."""
    assert isinstance(task.model, DDiT)
    known = spec_in(origin.manifest, origin.place).step_size
    fit_new = settings.fresh == "fit"
    start_from(task.model, origin.weights(), step_size=known, fit=fit_new, where=str(settings.init_from))


def record_for(settings: StudentSettings, spec: VelocitySpec, method: Distils) -> Record:
    """What the run's manifests say, and what a resumed run must share with its checkpoint."""
    start = {"init_from": on_disk(settings.init_from, "init_from", settings.START)}
    read = {"tokens": settings.tokens, **method.inputs(settings)}
    inputs = start | {name: on_disk(path, name) for name, path in read.items()}
    own = {name: value for name, value in to_dict(settings).items() if name not in FREE}
    bound = method.bound()
    return Record(
        stage=settings.name or method.label or method.name,
        settings=settings,
        inputs=inputs,
        parent=inputs["init_from"],
        extra={"model": spec.plain(), "bound": bound.label if bound else None},
        then=method.then(settings),
        identity={"model": spec.identity(), **own, "inputs": known_inputs(settings, inputs)},
    )


def known_inputs(settings: StudentSettings, inputs: dict[str, Path]) -> dict[str, str]:
    """The hashes a resumed run is held to: of the inputs as they are or, with `allow_changed`, as they were."""
    newest = Store(settings.out).newest()
    if settings.allow_changed and newest is not None:
        return dict(read_state(newest)["identity"]["inputs"])
    return {name: input_sha256(path) for name, path in inputs.items()}
