"""The stage of every distillation: tokens, a model to start from and what the method needs besides → a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from tsdfm.distil.settings import DistilSettings, StudentSettings
from tsdfm.distil.start import start_from, step_size_weights
from tsdfm.engine.distributed import Processes, join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record, Task
from tsdfm.errors import UserError
from tsdfm.flow import Bound
from tsdfm.flow.logits import readable_as
from tsdfm.nn.decoder import told_decoder
from tsdfm.nn.network import TokenNet
from tsdfm.nn.velocity import VelocitySpec, check_rows, spec_in
from tsdfm.settings import path_settings, to_dict
from tsdfm.store.bundle import FoundWeights, find_weights, on_disk
from tsdfm.store.checkpoint import Store, read_state
from tsdfm.store.manifest import input_sha256
from tsdfm.tokens.loader import with_numbers
from tsdfm.tokens.rows import TokenRows, asking, valid_rows

FREE = {"name", "checkpoint", "probe_every", "resume", "eval_rows", "eval_times", "allow_changed", "record"}
FREE |= {"loop", "optim"}
"""Settings that a resumed run may change; paths too, of whose files the hashes count."""


class Distils(Protocol):
    """What this stage asks of a method (`tsdfm.methods.DistilMethod`)."""

    name: ClassVar[str]
    label: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]

    def told(self, settings: Any, origin: VelocitySpec) -> dict[str, Any]: ...

    def rounds(self, settings: Any) -> int: ...

    def words(self, settings: Any = None) -> dict[str, Any]: ...

    def then(self, settings: Any) -> tuple[str | Path, ...]: ...

    def bound(self) -> Bound | None: ...

    def task(self, settings: Any, spec: VelocitySpec, valid: TokenRows | None, world: Processes) -> Task: ...

    def inputs(self, settings: Any) -> dict[str, Path]: ...


def train(settings: DistilSettings, method: Distils) -> Path:
    """Distil a student by `method` and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    origin = start_of(settings)
    spec = spec_for(settings, spec_in(origin.manifest, origin.place), method)
    check_rows(spec, rows, "init_from")
    spec = replace(spec, prompted=rows.prompted)
    check_steps_from(settings, spec_in(origin.manifest, origin.place))
    with join(settings.loop.device) as world:
        task = method.task(settings, spec, valid_rows(settings.tokens), world)
        return train_rows(
            task,
            rows,
            settings,
            record_for(settings, spec, method),
            world,
            begin=lambda: begin(task, settings, origin),
            feeder=with_numbers,
        )


def start_of(settings: DistilSettings) -> FoundWeights:
    """What the student starts from: the averaged weights of a run, or a bundle's (its student's, or FOLDER/teacher)."""
    return find_weights(settings.init_from, settings.START, which="ema", choose="newest")


def spec_for(settings: DistilSettings, origin: VelocitySpec, method: Distils) -> VelocitySpec:
    """The network of what the student starts from, told what the method tells it, or what it was told before."""
    if origin.source not in method.sources:
        only = " and ".join(method.sources)
        raise UserError(f"{method.name} is for the {only} source, and {settings.init_from} is of {origin.source}")
    known = method.words(settings) | method.told(settings, origin)
    told = all(getattr(origin, name) == known[name] for name in ("time", "clock"))
    if not told or not readable_as(origin.logits, known["logits"]):
        raise UserError(
            f"{method.name} cannot start from {settings.init_from}, which is of method {origin.method}: its network is "
            "told, or answers, something else; start from a dfm or few-step model"
        )
    dropout = origin.shape.dropout if settings.dropout is None else settings.dropout
    shape = replace(origin.shape, dropout=dropout, checkpoint=settings.checkpoint)
    before = origin.rounds if origin.method == method.name else 0
    decoder = told_decoder(origin.decoder, known["step_size"])
    if decoder is not None and (known.get("latent") or dropout):
        latent = f"is told no latent number, and {method.name} would tell it one: use a method, or settings, without"
        what = latent if known.get("latent") else "has no dropout: leave it out"
        raise UserError(f"{settings.init_from} is a decoder, which {what}")
    return replace(origin, shape=shape, **known, decoder=decoder, rounds=before + method.rounds(settings))


def begin(task: Task, settings: DistilSettings, origin: FoundWeights) -> None:
    """The weights of step 0: the averaged ones of what the student starts from."""
    student, before = cast(TokenNet, task.model), spec_in(origin.manifest, origin.place)
    fit_new = isinstance(settings, StudentSettings) and settings.fresh == "fit"
    where = str(settings.init_from)
    start_from(student, origin.weights(), before, step_size=before.step_size, fit=fit_new, where=where)
    if isinstance(settings, StudentSettings) and settings.steps_from is not None:
        other = find_weights(settings.steps_from, settings.START, which="ema", choose="newest")
        found = step_size_weights(other.weights(), student, f"steps_from, {settings.steps_from},")
        student.load_state_dict(found, strict=False)


def check_steps_from(settings: DistilSettings, origin: VelocitySpec) -> None:
    """Refuse to take step-size weights where the start has its own, before anything is begun."""
    if isinstance(settings, StudentSettings) and settings.steps_from is not None and origin.step_size:
        raise UserError("steps_from is for a student that starts from a teacher: init_from is a student, leave it out")


def record_for(settings: DistilSettings, spec: VelocitySpec, method: Distils) -> Record:
    """What the run's manifests say, and what a resumed run must share with its checkpoint."""
    start = {"init_from": on_disk(settings.init_from, "init_from", settings.START)}
    read = {"tokens": settings.tokens, **method.inputs(settings)}
    if isinstance(settings, StudentSettings) and settings.steps_from is not None:
        read["steps_from"] = settings.steps_from
    inputs = start | {name: on_disk(path, name) for name, path in read.items()}
    free = FREE | path_settings(type(settings))
    own = {name: value for name, value in to_dict(settings).items() if name not in free}
    bound = method.bound()
    return Record(
        stage=settings.name or method.label or method.name,
        settings=settings,
        inputs=inputs,
        parent=inputs["init_from"],
        extra={"model": spec.plain(), "bound": bound.label if bound else None},
        then=asking(method.then(settings), settings.tokens),
        identity={"model": spec.identity(), "method": method.name, **own, "inputs": known_inputs(settings, inputs)},
    )


def known_inputs(settings: DistilSettings, inputs: dict[str, Path]) -> dict[str, str]:
    """The hashes a resumed run is held to: of the inputs as they are or, with `allow_changed`, as they were."""
    newest = Store(settings.out).newest()
    if settings.allow_changed and newest is not None:
        return dict(read_state(newest)["identity"]["inputs"])
    return {name: input_sha256(path) for name, path in inputs.items()}
