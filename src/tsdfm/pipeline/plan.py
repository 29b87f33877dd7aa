"""What a recipe asks for, as a list of stages. All settings are built first, so that a mistake in the last one shows at
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.recipes import table
from tsdfm.settings import build, merge, nearest

BY_SOURCE = ("teacher", "compass", "compasses", "validate", "student", "students")  # [source.NAME.SECTION] lays over
SECTIONS = ("extends", "seed", "sources", "source", "corpus", "tokens", "judge", *BY_SOURCE, "measure", "report")
SOURCES = ("uniform", "mask")
TRAINED = ("teacher", "compass", "student", "judge")
MANY = {"student": "students"}


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline: what to call it, and what to do. One that trains a model has its folder's name for `key`,
    and in `after` the keys of the models it needs."""

    name: str
    run: Callable[[], Any]
    key: str = ""
    after: frozenset[str] = frozenset()


def plan(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """The stages in order."""
    from tsdfm.pipeline.models import source_stages
    from tsdfm.pipeline.places import used_stages
    from tsdfm.pipeline.reports import report_stages

    check_names(recipe, SECTIONS, "section")
    recipe = seeded(recipe)
    stages = [*text_stages(recipe, out), *used_stages(recipe, out)]
    if "judge" in recipe:
        stages.append(judge_stage(recipe, out))
    for source in sources_of(recipe):
        stages += source_stages(recipe, source, out)
    return stages + report_stages(recipe, out)


def seeded(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """`seed = N` laid under every stage that has a seed of its own."""
    if "seed" not in recipe:
        return dict(recipe)
    wanted = [name for name in TRAINED if name in recipe or MANY.get(name) in recipe]
    loops = {name: {"loop": {"seed": recipe["seed"]}} for name in wanted}
    measure = {"measure": {"seed": recipe["seed"]}} if "measure" in recipe else {}
    return merge({**loops, **measure}, dict(recipe))


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


def judge_stage(recipe: Mapping[str, Any], out: Path) -> Stage:
    """An in-house judge on the same tokens, which all sources share; `measure` then asks it too."""
    from tsdfm.judges.settings import JudgeTrainSettings
    from tsdfm.judges.train import run
    from tsdfm.pipeline.done import train

    settings = build(
        JudgeTrainSettings, {"tokens": out / "tokens", **table(recipe, "judge"), "out": out / "judge"}, "judge"
    )
    settings.net.shape()
    return Stage("judge", lambda: train(run, settings), "judge")
