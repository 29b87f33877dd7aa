"""The compass stage: tokens and a teacher → a run folder with checkpoints, metrics, the tokenizer and a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm.compass.model import spec_in
from tsdfm.compass.network import CompassSpec, EnergyNet, spec_from, start_from_teacher
from tsdfm.compass.ratio import RatioTask
from tsdfm.compass.settings import CompassNet, CompassSettings
from tsdfm.compass.task import CompassTask, make_negatives
from tsdfm.engine.distributed import Processes, join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.errors import UserError
from tsdfm.nn.decoder import DecoderShape, told_decoder
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import Velocity, VelocitySpec, check_rows, load_velocity
from tsdfm.settings import to_dict
from tsdfm.store.bundle import find_weights, on_disk
from tsdfm.tokens.loader import with_numbers
from tsdfm.tokens.rows import TokenRows, valid_rows


def run(settings: CompassSettings) -> Path:
    """Train a compass and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    with join(settings.loop.device) as world:
        teacher = load_velocity(settings.teacher, world.device, role="teacher")
        shape, decoder = sizes(settings, teacher.spec)
        spec = spec_from(teacher.spec, shape, settings.objective, decoder)
        check_rows(spec, rows, "the teacher")
        task = task_for(settings, spec, teacher, rows, world)
        return train_rows(
            task,
            rows,
            settings,
            record_for(settings, spec),
            world,
            begin=lambda: start(task.model, settings, spec, teacher),
            feeder=with_numbers,
        )


def sizes(settings: CompassSettings, teacher: VelocitySpec) -> tuple[Shape, DecoderShape | None]:
    """The sizes that the settings ask for; if they ask for none, a compass that starts from its teacher has the
    teacher's, and half of its blocks. A decoder's sizes cannot be asked for."""
    net, usual = settings.net, CompassNet()
    asked = replace(net, depth=None, checkpoint=usual.checkpoint) != usual
    if settings.init != "teacher" or (asked and teacher.decoder is None):
        return net.shape(), None
    if asked:
        raise UserError(f"{settings.teacher} is a decoder, which has sizes of its own: leave out net.* but net.depth")
    whole = teacher.shape.depth if teacher.decoder is None else teacher.decoder.depth
    depth = net.depth or max(1, round(whole / 2))
    if depth > whole:
        raise UserError(f"{settings.teacher} has {whole} blocks: net.depth is at most that")
    shape = replace(teacher.shape, depth=depth, dropout=0.0, checkpoint=net.checkpoint)
    if teacher.decoder is None:
        return shape, None
    decoder = told_decoder(teacher.decoder, told=True)
    return replace(shape, cond=decoder.cond), decoder


def task_for(
    settings: CompassSettings, spec: CompassSpec, teacher: Velocity, rows: TokenRows, world: Processes
) -> CompassTask | RatioTask:
    """The objective these settings ask for."""
    negatives = make_negatives(settings.corrupt, rows, spec, teacher, settings.t_floor, world.device)
    valid = valid_rows(settings.tokens)
    if settings.objective == "nce":
        return CompassTask(settings, spec, negatives, valid, world)
    return RatioTask(settings, spec, proposer_for(settings, spec, teacher), negatives, valid, world)


def proposer_for(settings: CompassSettings, spec: CompassSpec, teacher: Velocity) -> Velocity:
    """The model whose jumps objective `ratio` tells from the truth."""
    if settings.ratio.proposer is None:
        return teacher
    proposer = load_velocity(settings.ratio.proposer, teacher.device)
    spec.match(proposer.spec, f"the proposer {settings.ratio.proposer}")
    if proposer.spec.schedule != spec.schedule:
        raise UserError(f"the proposer has schedule {proposer.spec.schedule}, the teacher {spec.schedule}")
    return proposer


def start(model: EnergyNet, settings: CompassSettings, spec: CompassSpec, teacher: Velocity) -> None:
    """The weights of step 0, where they are not the fresh ones."""
    if settings.init_from is not None:
        other = find_weights(settings.init_from, settings.START, which="ema", choose="best")
        spec.match(spec_in(other.manifest, other.place), f"the compass to start from, {settings.init_from},")
        try:
            model.load_state_dict(other.weights())
        except RuntimeError:
            raise UserError(f"{settings.init_from} has a compass of another size: use its net settings") from None
    elif settings.init == "teacher":
        start_from_teacher(model, teacher)


def record_for(settings: CompassSettings, spec: CompassSpec) -> Record:
    """What the run's manifests say. `compass` rather than `model`: nobody may take it for a velocity network."""
    inputs = {"tokens": settings.tokens, "teacher": on_disk(settings.teacher, "teacher")}
    origin = None if settings.init_from is None else on_disk(settings.init_from, "init_from", settings.START)
    if origin is not None:
        inputs["init_from"] = origin
    if settings.ratio.proposer is not None and settings.objective == "ratio":
        inputs["proposer"] = on_disk(settings.ratio.proposer, "proposer")
    plain = to_dict(settings)
    own = ("negatives", "lambda_reg", "lambda_order", "gamma", "delta_min", "delta_max", "t_floor", "clean", "corrupt")
    fixed = {name: plain[name] for name in own} if settings.objective == "nce" else {"ratio": plain["ratio"]}
    return Record(
        stage="compass",
        settings=settings,
        inputs=inputs,
        parent=origin,
        extra={"compass": spec.plain()},
        then=("compass", "validate", settings.out),
        identity={"compass": spec.identity(), **fixed},
    )
