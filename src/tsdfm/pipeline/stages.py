"""What a plan's stages do, one function each: the text, the models, the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.pipeline.done import examine, is_started, train
from tsdfm.pipeline.plan import START, Model, Plan
from tsdfm.public.settings import ImportSettings
from tsdfm.recipes.trainers import trainer
from tsdfm.settings import flat, path_settings, to_dict
from tsdfm.store.bundle import find_shipped
from tsdfm.store.files import write_json
from tsdfm.store.manifest import NAME as MANIFEST


@dataclass(frozen=True)
class Training:
    """One network to be trained: the name of its folder, those it needs before, and what to do."""

    key: str
    needs: frozenset[str]
    run: Callable[[], None]


def check_inputs(plan: Plan) -> None:
    """Refuse what is read from elsewhere and is not there, before anything is trained for it."""
    tokens = plan.tokens if plan.corpus is None else None  # of a corpus that the recipe does not make
    if tokens is not None and tokens.corpus is not None and not (tokens.corpus.exists() or tokens.out.exists()):
        raise UserError("the recipe has no text of its own: give a file or a folder by --set corpus.path=FOLDER")
    if plan.starts:
        from tsdfm.public.causal import causal_folder  # loads torch

        causal_folder(plan.starts[0].source, plan.starts[0].revision)
    asked: list[tuple[str, Any]] = [(START, start) for start in plan.starts]
    asked += [(model.name, model.settings) for model in plan.models if model.trained]
    for owner, settings in [*asked, *((f"report.{table.name}", table.settings) for table in plan.tables)]:
        wanted = path_settings(type(settings)) - {"out", "runs"}
        for name, value in flat(to_dict(settings)).items():
            paths = [] if name not in wanted or value is None else value if isinstance(value, list) else [value]
            for path in map(Path, paths):
                if not (path.exists() or path.resolve().is_relative_to(plan.out.resolve()) or find_shipped(path)):
                    raise UserError(f"{owner}: {name} says {path}, and there is nothing")
    for table in plan.tables:
        if (file := getattr(table.settings, "file", None)) is not None:  # a mistake would show after all trainings
            from tsdfm.report.problems import read_problems  # loads torch

            read_problems(file, table.settings.prompt, table.settings.field)


def make_text(plan: Plan) -> None:
    """Corpus and tokens; and models that are used, which must be of these tokens."""
    if plan.corpus is not None:
        from tsdfm.corpus.run import run as make_corpus

        terminal.say("── text")
        make_corpus(plan.corpus)
    if plan.tokens is not None:
        from tsdfm.tokens.run import run as make_tokens

        make_tokens(plan.tokens)
    for start in plan.starts:
        make_start(start)
    for model in plan.models:
        if model.spec is not None:
            terminal.say(f"── {model.name}, {model.source} source: {model.path} is used")
            check_tokens(model, plan.out / "tokens")


def make_start(settings: ImportSettings) -> None:
    """A causal model as the start of flow models, unless it is there."""
    from tsdfm.public.run import run

    if is_started(settings):
        terminal.say(f"── {settings.out.name}: there already → {settings.out}")
    else:
        run(settings)


def check_tokens(model: Model, tokens: Path) -> None:
    """Refuse a model of another tokenizer, or of other rows, than the pipeline's."""
    from tsdfm.tokens.rows import TokenRows

    if model.spec is None or not (tokens / MANIFEST).is_file():
        return  # each stage looks at its own
    rows, length = TokenRows(tokens, "train"), model.spec.get("length")
    if model.spec.get("tokenizer") != rows.fingerprint:
        raise UserError(f"{model.name}: {model.path} has another tokenizer than {tokens}: use one of the same tokens")
    if length != rows.length:
        raise UserError(f"{model.name}: {model.path} has rows of {length} tokens and {tokens} of {rows.length}")


def trainings(plan: Plan) -> list[Training]:
    """What is to be trained, each after what it needs."""
    judge = [] if plan.judge is None else [Training("judge", frozenset(), partial(train_judge, plan))]
    return judge + [Training(model.key, model.needs, partial(train_model, model)) for model in plan.training()]


def train_judge(plan: Plan) -> None:
    """An in-house judge on the same tokens, which `measure` then asks too."""
    from tsdfm.judges.train import run

    assert plan.judge is not None
    train(run, plan.judge, "judge")


def train_model(model: Model) -> None:
    """Train a model, and examine it if it is a compass."""
    train(trainer(model.method).train, model.settings, f"{model.name}, {model.source} source", model.method)
    if model.exam is not None:
        examine(model.exam)


def make_report(plan: Plan) -> None:
    """Everything after the training: `compass.json`, `metrics.json`, tables, trajectories, the page, the closing."""
    report, wanted, verbose = plan.out / "report", plan.report, not terminal.quiet()
    if folders := plan.examined():
        from tsdfm.compass.validate import VALIDATION, read_validation

        write_json(report / "compass.json", {s: read_validation(f / VALIDATION) for s, f in folders.items()})
    if plan.measure is not None:
        from tsdfm.report.measure import run as measure

        terminal.say(f"── report: {plan.measure.samples} texts of each model at each number of steps")
        measure(plan.measure, plan.writers(), plan.out / "tokens", report, verbose=verbose)
    if plan.tables:
        from tsdfm.report.desk import run as make_table

        for table in plan.tables:
            make_table(replace(table.settings, verbose=verbose))
    if wanted is not None and wanted.trajectories:
        record_all(plan, wanted.trajectories)
    page = None
    if wanted is not None and wanted.page:
        from tsdfm.report.page.build import build_page

        page = build_page(plan.out)
    if plan.measure is not None:
        from tsdfm.report.summary import closing

        closing(plan.out, page)
    elif page is not None:
        terminal.say(f"the report is {page}: open it in a browser")
    terminal.say(f"── done: {plan.out}")


def record_all(plan: Plan, steps: int) -> None:
    """The same seed through every model of each source, scored by its compass."""
    from tsdfm.view.record import record_trajectories

    folder = plan.out / "report" / "trajectories"
    shutil.rmtree(folder, ignore_errors=True)  # those of other steps or of models that are gone
    for source in plan.sources:
        compass = plan.compass(source)
        place = None if compass is None else compass.path
        record_trajectories(plan.writers(source), place, folder, steps=steps, seed=plan.seed)
    terminal.made("trajectories", f"{steps} steps of each model", folder)
