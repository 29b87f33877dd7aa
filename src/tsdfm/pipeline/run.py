"""`tsdfm pipeline RECIPE`: every stage the recipe has a section for, one after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tsdfm.errors import UserError
from tsdfm.pipeline.jobs import Crew, jobs_of, pipeline_command
from tsdfm.pipeline.places import Places
from tsdfm.pipeline.plan import Stage, plan, sources_of
from tsdfm.pipeline.settings import PipelineSettings
from tsdfm.recipes import load_recipe
from tsdfm.settings import merge, nearest

PART = re.compile(r'"([^"]*)"|([^.]+)')  # of a dotted name


def run(settings: PipelineSettings, say: Callable[[str], None] = print) -> Path:
    """Run every stage the recipe has a section for, and return the folder."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a pipeline runs in one process: start only the training stage with torchrun")
    over = overrides(settings.set)
    recipe = merge(load_recipe(settings.recipe, extends=over.pop("extends", None)), over)
    stages = plan(recipe, settings.out)
    if settings.only is not None:
        stages = [stage for stage in stages if stage.key == settings.only] or refuse(settings.only, stages, recipe)
    elif settings.jobs > 1:
        return run_jobs(stages, settings, say)
    run_stages(stages, say)
    say(f"── done: {settings.out}")
    return settings.out


def run_stages(stages: Sequence[Stage], say: Callable[[str], None]) -> None:
    """One after the other."""
    for stage in stages:
        say(f"── {stage.name}")
        stage.run()


def run_jobs(stages: Sequence[Stage], settings: PipelineSettings, say: Callable[[str], None]) -> Path:
    """The text first, then the models side by side, then the report."""
    trained = [i for i, stage in enumerate(stages) if stage.key]
    first, last = (trained[0], trained[-1] + 1) if trained else (len(stages), len(stages))
    run_stages(stages[:first], say)
    command = pipeline_command(settings.recipe, settings.out, settings.set)
    jobs, logs = jobs_of(stages[first:last]), settings.out / "logs"
    Crew(jobs, command, settings.jobs, logs, say, settings.retry, limit=settings.limit).run()
    run_stages(stages[last:], say)
    say(f"── done: {settings.out}")
    return settings.out


def refuse(only: str, stages: Sequence[Stage], recipe: Mapping[str, Any]) -> NoReturn:
    """There is no such model, or none to be trained."""
    for source in sources_of(recipe):
        places = Places.of(recipe, source, Path())
        for name, used in places.used.items():
            if places.key(name) == only:
                raise UserError(f"{only} is not trained: the recipe uses {used.path}")
    raise UserError(
        f"the recipe trains no {only!r}{nearest(only, list(dict.fromkeys(stage.key for stage in stages if stage.key)))}"
    )


def overrides(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`("teacher.loop.steps=100",)` as nested plain values; what is given more than once makes a list.

    A name with a dot of its own stands in quotes: `students."ts-tau-0.02".loop.steps=100`.
    """
    out: dict[str, Any] = {}
    seen: dict[str, list[str]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes section.name=value, not {pair!r}")
        earlier = seen.setdefault(path.strip(), [])
        earlier.append(value)
        parts = [quoted or plain for quoted, plain in PART.findall(path.strip())]
        names = parts[-1:] == ["sources"]
        nested: Any = value.split(",") if names else value if len(earlier) == 1 else list(earlier)
        for part in reversed(parts):
            nested = {part: nested}
        out = merge(out, nested)
    return out
