"""Run a recipe from text to table: corpus → tokens → teacher → measure. What is already made is not made again.

Each stage's folder lies in the pipeline's: OUT/corpus, OUT/tokens, OUT/teacher-uniform, OUT/report. A stage that was
broken off goes on where it was; one that is finished with the same settings is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tsdfm.engine.manifest import NAME as MANIFEST
from tsdfm.engine.manifest import read_manifest, write_manifest
from tsdfm.errors import UserError
from tsdfm.recipes import load_recipe
from tsdfm.settings import build, merge, nearest, option, required, to_dict

SECTIONS = ("corpus", "tokens", "teacher", "measure")


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Which recipe to run, and where."""

    recipe: str = required("a recipe that comes with tsdfm, or a TOML file")
    out: Path = option(Path("runs/demo"), "folder for everything it makes")
    set: tuple[str, ...] = option((), "override a setting, as in teacher.loop.steps=100; may be given many times")


def run(settings: PipelineSettings, say: Callable[[str], None] = print) -> Path:
    """Run every stage the recipe has a section for, and return the folder."""
    recipe = merge(load_recipe(settings.recipe), overrides(settings.set))
    for name in recipe:
        if name not in SECTIONS:
            raise UserError(f"unknown section [{name}] in recipe {settings.recipe}{nearest(name, SECTIONS)}")
    out = settings.out
    planned = plan(recipe, out)
    for name, stage in planned.items():
        say(f"── {name}")
        stage()
    say(f"── done: {out}")
    return out


def overrides(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`("teacher.loop.steps=100",)` as nested plain values."""
    out: dict[str, Any] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes section.name=value, not {pair!r}")
        nested: Any = value
        for part in reversed(path.strip().split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out


def plan(recipe: Mapping[str, Any], out: Path) -> dict[str, Callable[[], Any]]:
    """The stages in order. Every section's settings are built here, so that a mistake in the last one shows at once."""
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.report.measure import MeasureSettings
    from tsdfm.teacher.settings import TeacherSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    stages: dict[str, Callable[[], Any]] = {}
    if "corpus" in recipe:
        corpus = build(CorpusSettings, {**recipe["corpus"], "out": out / "corpus"}, "corpus")
        corpus.all_sources()
        stages["corpus"] = lambda: make_corpus(corpus)
    if "tokens" in recipe:
        given = {"corpus": out / "corpus", "out": out / "tokens", **recipe["tokens"]}
        tokens = build(TokensSettings, given, "tokens")
        stages["tokens"] = lambda: make_tokens(tokens)
    if "teacher" in recipe:
        given = {"tokens": out / "tokens", **recipe["teacher"]}
        source = given.get("source", "uniform")
        teacher = build(TeacherSettings, {**given, "out": out / f"teacher-{source}"}, "teacher")
        teacher.net.shape()
        stages[f"teacher, {source} source"] = lambda: train_teacher(teacher)
        if "measure" in recipe:
            measured = build(MeasureSettings, recipe["measure"], "measure")
            stages["measure"] = lambda: measure_all(measured, teacher.tokens, [teacher.out], out / "report")
    return stages


def train_teacher(settings: Any) -> Path:
    """Train, go on, or leave a finished teacher as it is."""
    from tsdfm.teacher.run import run as train

    if is_finished(settings):
        return Path(settings.out)
    return train(replace(settings, resume=True))


def is_finished(settings: Any) -> bool:
    """Is there a finished run of these settings? One of other settings is the user's to remove."""
    if not (settings.out / MANIFEST).is_file():
        return False
    found = read_manifest(settings.out)
    if not found.get("finished"):
        return False
    if comparable(found["settings"]) != comparable(to_dict(settings)):
        raise UserError(f"{settings.out} holds a finished run of other settings: remove it or give another --out")
    return True


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what does not change the result."""
    return {name: value for name, value in settings.items() if name not in ("out", "tokens", "resume")}


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
        console.print(f"[dim]{row['method']}, {row['steps']} steps:[/dim] {row['texts'][0]}", highlight=False)
    show(rows)
