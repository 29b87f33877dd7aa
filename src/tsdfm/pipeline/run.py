"""`tsdfm pipeline RECIPE`: every stage the recipe has a section for, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tsdfm import terminal
from tsdfm.engine.launch import torchrun_says
from tsdfm.errors import UserError
from tsdfm.pipeline.jobs import Crew, Job
from tsdfm.pipeline.plan import Plan, make_plan
from tsdfm.pipeline.settings import PipelineSettings
from tsdfm.pipeline.stages import Training, check_inputs, make_report, make_text, trainings
from tsdfm.recipes import read_recipe
from tsdfm.settings import nearest


def run(settings: PipelineSettings) -> Path:
    """Run every stage the recipe has a section for, and return the folder."""
    if torchrun_says()[1] > 1:
        raise UserError("a pipeline runs in one process: start only the training stage with torchrun")
    plan = make_plan(read_recipe(settings.recipe, settings.set), settings.folder)
    todo = trainings(plan)
    check_inputs(plan)
    with terminal.many_stages(settings.verbose):
        if settings.only is not None:
            one = next((each for each in todo if each.key == settings.only), None)
            (one or refuse(settings.only, todo, plan)).run()
            return plan.out
        make_text(plan)
        if settings.jobs > 1:
            side_by_side(todo, settings)
        else:
            for each in todo:
                each.run()
        make_report(plan)
    return plan.out


def side_by_side(todo: Sequence[Training], settings: PipelineSettings) -> None:
    """Train several at a time, each by this command with --only."""
    begin = [sys.executable, "-m", "tsdfm", "pipeline", settings.recipe, "--out", str(settings.folder), "--verbose"]
    begin += [word for pair in settings.set for word in ("--set", pair)]
    jobs, logs = [Job(each.key, each.needs) for each in todo], settings.folder / "logs"
    Crew(
        jobs, lambda key: [*begin, "--only", key], settings.jobs, logs, retry=settings.retry, limit=settings.limit
    ).run()


def refuse(only: str, todo: Sequence[Training], plan: Plan) -> NoReturn:
    """There is no such model, or none to be trained."""
    for model in plan.models:
        if model.key == only and not model.trained:
            raise UserError(f"{only} is not trained: the recipe uses {model.path}")
    raise UserError(f"the recipe trains no {only!r}{nearest(only, [each.key for each in todo])}")
