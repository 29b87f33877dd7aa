"""Run a recipe from text to table: corpus → tokens → teacher → compass → measure, for each source.

Every stage has a folder in the pipeline's: OUT/corpus, OUT/tokens, OUT/teacher-uniform, OUT/compass-uniform, …, and
OUT/report. A stage that was broken off goes on where it was; one that is finished with the same settings is skipped.

A recipe has a section for each stage it wants. `sources = ["uniform", "mask"]` runs the stages after `tokens` for both,
and `[source.mask.teacher]` lays settings over `[teacher]` for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tsdfm.engine.manifest import NAME as MANIFEST
from tsdfm.engine.manifest import input_sha256, read_json, read_manifest, write_json, write_manifest
from tsdfm.errors import UserError
from tsdfm.recipes import load_recipe, table
from tsdfm.settings import build, merge, nearest, option, required, to_dict

SECTIONS = ("sources", "source", "corpus", "tokens", "teacher", "compass", "validate", "measure")
SOURCES = ("uniform", "mask")
BY_SOURCE = ("teacher", "compass", "validate")  # sections that [source.NAME.SECTION] may lay settings over


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Which recipe to run, and where."""

    recipe: str = required("a recipe that comes with tsdfm, or a TOML file")
    out: Path = option(Path("runs/demo"), "folder for everything it makes")
    set: tuple[str, ...] = option((), "override a setting, as in teacher.loop.steps=100; may be given many times")


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline: what to call it, and what to do."""

    name: str
    run: Callable[[], Any]


def run(settings: PipelineSettings, say: Callable[[str], None] = print) -> Path:
    """Run every stage the recipe has a section for, and return the folder."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a pipeline runs in one process: start only the training stage with torchrun")
    recipe = merge(load_recipe(settings.recipe), overrides(settings.set))
    for stage in plan(recipe, settings.out):
        say(f"── {stage.name}")
        stage.run()
    say(f"── done: {settings.out}")
    return settings.out


def overrides(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`("teacher.loop.steps=100",)` as nested plain values."""
    out: dict[str, Any] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes section.name=value, not {pair!r}")
        nested: Any = value.split(",") if path.strip() == "sources" else value
        for part in reversed(path.strip().split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out


def plan(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """The stages in order. Every section's settings are built here, so that a mistake in the last one shows at once."""
    check_names(recipe, SECTIONS, "section")
    stages = text_stages(recipe, out)
    for source in sources_of(recipe):
        stages += source_stages(recipe, source, out)
    return stages + report_stages(recipe, out)


def sources_of(recipe: Mapping[str, Any]) -> list[str]:
    """The sources to run for."""
    found = recipe.get("sources", [table(recipe, "teacher").get("source", "uniform")])
    found = [found] if isinstance(found, str) else list(found)
    check_names([*found, *table(recipe, "source")], SOURCES, "source")
    for source, over in table(recipe, "source").items():
        check_names(table({source: over}, source), BY_SOURCE, f"section of source {source}")
    return found


def check_names(found: Iterable[str], known: Sequence[str], what: str) -> None:
    """Answer a name that is not known with the nearest that is."""
    for name in found:
        if name not in known:
            raise UserError(f"unknown {what} {name!r} in the recipe{nearest(str(name), known)}")


def section(recipe: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    """A section's values for one source."""
    return merge(table(recipe, name), table(table(recipe, "source").get(source, {}), name))


def text_stages(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """Corpus and tokens, which all sources share."""
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    stages = []
    if "corpus" in recipe:
        corpus = build(CorpusSettings, {**table(recipe, "corpus"), "out": out / "corpus"}, "corpus")
        corpus.all_sources()
        stages.append(Stage("corpus", lambda: make_corpus(corpus)))
    if "tokens" in recipe:
        given = {"corpus": out / "corpus", "out": out / "tokens", **table(recipe, "tokens")}
        tokens = build(TokensSettings, given, "tokens")
        stages.append(Stage("tokens", lambda: make_tokens(tokens)))
    return stages


def source_stages(recipe: Mapping[str, Any], source: str, out: Path) -> list[Stage]:
    """What is trained for one source."""
    from tsdfm.compass.negatives import STRATEGIES
    from tsdfm.compass.run import run as train_compass
    from tsdfm.compass.settings import CompassSettings, ValidateSettings
    from tsdfm.flow.schedule import schedule_from
    from tsdfm.teacher.run import run as train_teacher
    from tsdfm.teacher.settings import TeacherSettings

    stages, inputs = [], {"tokens": out / "tokens"}
    if "teacher" in recipe:
        given = {**inputs, **section(recipe, "teacher", source), "source": source, "out": out / f"teacher-{source}"}
        teacher = build(TeacherSettings, given, "teacher")
        teacher.net.shape()
        schedule_from(teacher.schedule)
        stages.append(Stage(f"teacher, {source} source", lambda: train(train_teacher, teacher)))
    if "compass" in recipe:
        inputs["teacher"] = out / f"teacher-{source}"
        given = {**inputs, **section(recipe, "compass", source), "out": out / f"compass-{source}"}
        compass = build(CompassSettings, given, "compass")
        compass.net.shape()
        check_names(compass.corrupt.weights(), tuple(STRATEGIES), "strategy")
        stages.append(Stage(f"compass, {source} source", lambda: train(train_compass, compass)))
        exam = build(ValidateSettings, {**section(recipe, "validate", source), "compass": compass.out}, "validate")
        stages.append(Stage(f"compass validation, {source} source", lambda: examine(exam)))
    return stages


def report_stages(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """Measure what was trained."""
    from tsdfm.corpus.world import world_named
    from tsdfm.report.measure import MeasureSettings

    stages, sources = [], sources_of(recipe)
    if "compass" in recipe:
        folders = {source: out / f"compass-{source}" for source in sources}
        stages.append(Stage("compass report", lambda: collect_validations(folders, out / "report")))
    if "measure" in recipe:
        measured = build(MeasureSettings, table(recipe, "measure"), "measure")
        world_named(measured.world)
        models = [out / f"teacher-{source}" for source in sources]
        stages.append(Stage("measure", lambda: measure_all(measured, out / "tokens", models, out / "report")))
    return stages


def train(stage: Callable[[Any], Path], settings: Any) -> Path:
    """Train, go on, or leave a finished run as it is."""
    if is_finished(settings):
        return Path(settings.out)
    return stage(replace(settings, resume=True))


def is_finished(settings: Any) -> bool:
    """Is there a finished run of these settings? One of other settings is the user's to remove."""
    if not (settings.out / MANIFEST).is_file():
        return False
    found = read_manifest(settings.out)
    if not found.get("finished"):
        return False
    if comparable(found["settings"]) != comparable(to_dict(settings)):
        raise UserError(f"{settings.out} holds a finished run of other settings: remove it or give another --out")
    for name, made_from in found["inputs"].items():
        if input_sha256(Path(getattr(settings, name))) != made_from["sha256"]:
            raise UserError(f"{settings.out} was made from other {name}: remove it or give another --out")
    return True


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what does not change the result: where things lie, and how the run was started."""
    return {n: v for n, v in settings.items() if n not in ("out", "tokens", "teacher", "resume")}


def examine(settings: Any) -> None:
    """Validate a compass, unless the same has been done to the same checkpoint."""
    from tsdfm.compass.validate import validate
    from tsdfm.engine.checkpoint import find_checkpoint

    done = settings.compass / "validation.json"
    found = read_json(done) if done.is_file() else {}
    same = found.get("checkpoint") == find_checkpoint(settings.compass, settings.choose).name
    if not same or found.get("settings") != to_dict(settings):
        validate(settings)


def collect_validations(folders: Mapping[str, Path], report: Path) -> None:
    """`report/compass.json`: the validation of each source's compass."""
    write_json(report / "compass.json", {s: read_json(f / "validation.json") for s, f in folders.items()})


def measure_all(settings: Any, tokens: Path, models: list[Path], report: Path) -> None:
    """Measure every model, write `metrics.json`, print the table."""
    from rich.console import Console

    from tsdfm.report.measure import measure, real_row, write_metrics
    from tsdfm.report.table import show

    console = Console(stderr=True)
    rows = [row for model in models for row in measure(settings, model, console.print)]
    rows.append(real_row(settings, tokens))
    write_metrics(report, rows)
    inputs = {"tokens": tokens, **{model.name: model for model in models}}
    write_manifest(report, stage="report", settings=settings, inputs=inputs)
    for row in rows[:-1]:
        title = f"{row['method']}, {row['source']} source, {row['steps']} steps"
        console.print(f"[dim]{title}:[/dim] {row['texts'][0]}", highlight=False)
    show(rows)
