"""The stage of every many-step method: tokens → a run folder: checkpoints, metrics, the tokenizer, a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tsdfm.engine.distributed import join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.errors import UserError
from tsdfm.flow import Bound, schedule_from
from tsdfm.nn.decoder import told_decoder
from tsdfm.nn.network import fill
from tsdfm.nn.settings import NetSettings, Shape
from tsdfm.nn.velocity import VelocitySpec, load_velocity, spec_in
from tsdfm.settings import path_settings, to_dict
from tsdfm.store.bundle import find_weights, on_disk
from tsdfm.teacher.settings import TeacherSettings
from tsdfm.teacher.task import TeacherTask
from tsdfm.tokens.rows import TokenRows, asking, valid_rows

FREE = {"name", "eval_rows", "eval_times", "resume", "loop", "optim"}
FREE |= {"net", "source", "schedule"}  # the network has them
"""Settings that a resumed run may change, or that its network tells of; paths are free too."""


class ManyStep(Protocol):
    """What this stage asks of a method (`tsdfm.methods.Method`)."""

    name: ClassVar[str]
    label: ClassVar[str]

    def words(self, settings: Any = None) -> dict[str, Any]: ...

    def then(self, settings: Any) -> tuple[str | Path, ...]: ...

    def bound(self) -> Bound | None: ...

    def task(self, settings: Any, spec: VelocitySpec, valid: TokenRows | None) -> TeacherTask: ...


def train(settings: TeacherSettings, method: ManyStep) -> Path:
    """Train a model of `method` on tokens and return its run folder."""
    start, rows = start_of(settings), TokenRows(settings.tokens, "train")
    settings = sized(settings, start)
    spec = spec_for(settings, rows, method, start)
    with join(settings.loop.device) as world:
        task = method.task(settings, spec, valid_rows(settings.tokens))
        origin = settings.init_from
        begin = None if origin is None else lambda: start_from(task, spec, origin)
        return train_rows(task, rows, settings, record_for(settings, spec, method), world, begin=begin)


def check(settings: TeacherSettings) -> None:
    """Refuse sizes and schedules that cannot be, before anything is read."""
    settings.net.shape()
    schedule_from(settings.schedule)


def start_of(settings: TeacherSettings) -> VelocitySpec | None:
    """What the network is that the training starts from; none where it starts from nothing."""
    if settings.init_from is None:
        return None
    found = find_weights(settings.init_from, settings.START, which="ema", choose="newest")
    return spec_in(found.manifest, found.place)


def sized(settings: TeacherSettings, start: VelocitySpec | None) -> TeacherSettings:
    """The settings with the sizes of the network they start from, where they say nothing of the network."""
    if start is None:
        return settings
    mine, usual = settings.net, NetSettings()
    if start.decoder is not None:
        if mine.dropout not in (0, usual.dropout) or replace(mine, dropout=usual.dropout, checkpoint=False) != usual:
            raise UserError(
                f"{settings.init_from} is a decoder, with sizes of its own and no dropout: "
                "leave out net.* but net.checkpoint"
            )
        return settings
    if mine != usual or replace(start.shape, dropout=mine.dropout, checkpoint=mine.checkpoint) == mine.shape():
        return settings
    return replace(settings, net=NetSettings(**net_words(start.shape)))


def spec_for(
    settings: TeacherSettings, rows: TokenRows, method: ManyStep, start: VelocitySpec | None = None
) -> VelocitySpec:
    """The network these settings ask for on these rows; one that starts from a decoder is a decoder like it."""
    spec = VelocitySpec(
        shape=settings.net.shape(),
        vocab=rows.vocab_size,
        source=settings.source,
        schedule=settings.schedule,
        length=rows.length,
        anchor=rows.anchor,
        tokenizer=rows.fingerprint,
        prompted=rows.prompted,
        **method.words(settings),
    )
    if start is None or start.decoder is None:
        return spec
    shape = replace(start.shape, checkpoint=settings.net.checkpoint)
    return replace(spec, shape=shape, shift=start.shift, decoder=told_decoder(start.decoder, spec.time))


def record_for(settings: TeacherSettings, spec: VelocitySpec, method: ManyStep) -> Record:
    """What the run's manifests say, and what a resumed run must share with its checkpoint."""
    origin = on_disk(settings.init_from, "init_from", settings.START) if settings.init_from is not None else None
    start = {"init_from": origin} if origin is not None else {}
    bound, free = method.bound(), FREE | path_settings(type(settings))
    return Record(
        stage=settings.name or method.label or method.name,
        settings=settings,
        inputs={"tokens": settings.tokens, **start},
        parent=origin,
        extra={"model": spec.plain(), "bound": bound.label if bound else None},
        then=asking(method.then(settings), settings.tokens),
        identity={
            "model": spec.identity(),
            "method": method.name,
            **{name: value for name, value in to_dict(settings).items() if name not in free},
        },
    )


def start_from(task: TeacherTask, spec: VelocitySpec, path: Path) -> None:
    """Begin a new run with the averaged weights of another, or of a bundle's teacher, whatever rows it learned from."""
    other = load_velocity(path, role=TeacherSettings.START)
    spec.match(other.spec, f"the model to start from, {path},", rows=False)
    mine, theirs = net_words(spec.shape), net_words(other.spec.shape)
    if mine != theirs:  # heads, too: no tensor tells them
        flags = " ".join(f"--net.{name} {value}" for name, value in theirs.items() if value != mine[name])
        raise UserError(f"{path} has a network of another size: add {flags} to start from it")
    try:
        fill(task.model, other.net.state_dict())
    except ValueError:
        raise UserError(f"{path} has a network of another kind: start from one that is told the same") from None


def net_words(shape: Shape) -> dict[str, Any]:
    """The settings under `net` that make a network of this shape."""
    words = {name: getattr(shape, name) for name in ("width", "depth", "heads", "cond", "positions")}
    return {**words, "mlp_ratio": shape.hidden // shape.width}
