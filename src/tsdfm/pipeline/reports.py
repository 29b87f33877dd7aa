"""What is measured and shown of what was trained: `metrics.json`, the tables, the trajectories, the page."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsdfm.errors import UserError
from tsdfm.pipeline.models import names_of, student_names
from tsdfm.pipeline.places import Places
from tsdfm.pipeline.plan import Stage, check_names, sources_of
from tsdfm.recipes import table
from tsdfm.settings import Name, build, option
from tsdfm.store.files import read_json, write_json

if TYPE_CHECKING:
    from tsdfm.report.settings import MeasureSettings

SAMPLED = (
    "main",
    "frontier",
    "threshold",
    "candidates",
    "policy",
    "refinement",
    "diversity",
    "prefix",
    "scaling",
    "mauve",
)
TABLES = (*SAMPLED, "compass", "overhead", "claims")
JUDGED = tuple(name for name in SAMPLED if name not in ("refinement", "diversity"))
NO_JUDGE = "needs a judge: give measure.judges (docs/judges.md), a [judge] section, or measure.world for stories"


@dataclass(frozen=True, kw_only=True)
class Section:
    """What [report] itself may say; `[report.policy]` has the settings of `tsdfm report policy`, and so on."""

    tables: tuple[Name, ...] = option((), "tables of `tsdfm report`, by name")
    trajectories: int = option(0, "steps of the trajectories that are recorded for the player; 0 records none")
    page: bool = option(True, "write index.html")

    def __post_init__(self) -> None:
        if self.trajectories < 0:
            raise UserError("trajectories of [report] is a number of steps, 0 for none")


def report_stages(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """Everything after the training."""
    stages = []
    folders = examined(recipe, out)
    if folders:
        stages.append(Stage("compass report", lambda: collect_validations(folders, out / "report")))
    if "measure" in recipe:
        stages.append(measure_stage(recipe, out))
    if "report" in recipe:
        stages += page_stages(recipe, out)
    return stages


def examined(recipe: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """The compass of each source that is validated here, or that is used from elsewhere and was validated there."""
    if "compass" not in recipe:
        return {}
    places = [Places.of(recipe, source, out) for source in sources_of(recipe)]
    there = {place.source: place["compass"] for place in places}
    trained = {place.source for place in places if "compass" not in place.used}
    return {s: path for s, path in there.items() if s in trained or (path / "validation.json").is_file()}


def collect_validations(folders: Mapping[str, Path], report: Path) -> None:
    """`report/compass.json`: the validation of each source's compass."""
    write_json(report / "compass.json", {s: read_json(f / "validation.json") for s, f in folders.items()})


def models_of(recipe: Mapping[str, Any], out: Path) -> list[Path]:
    """The runs of every model that writes, source by source."""
    return [run for source in sources_of(recipe) for run in writers(recipe, source, out)]


def writers(recipe: Mapping[str, Any], source: str, out: Path) -> list[Path]:
    """The runs of one source's teacher and students."""
    names = [*(["teacher"] if "teacher" in recipe else []), *student_names(recipe, source)]
    places = Places.of(recipe, source, out)
    return [places[name] for name in names]


def measure_stage(recipe: Mapping[str, Any], out: Path) -> Stage:
    """Sample every model, judge the texts, print the table."""
    from tsdfm.corpus.world import world_named
    from tsdfm.report.measure import run

    settings = measured_by(recipe, out)
    if settings.frontier and not (settings.world or settings.judges):
        raise UserError(f"measure.frontier {NO_JUDGE}")
    if settings.world:
        world_named(settings.world)
    models = models_of(recipe, out)
    return Stage("measure", lambda: run(settings, models, out / "tokens", out / "report"))


def measured_by(recipe: Mapping[str, Any], out: Path) -> MeasureSettings:
    """[measure], with the recipe's own judge among the judges."""
    from tsdfm.report.settings import MeasureSettings

    given = table(recipe, "measure")
    judges = given.get("judges", [])
    own = [str(out / "judge")] if "judge" in recipe else []
    judges = [*own, *([judges] if isinstance(judges, str) else judges)]
    return build(MeasureSettings, {**given, "judges": judges}, "measure")


def page_stages(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """The tables that [report] names, trajectories of the same seed through every model, and the page."""
    from tsdfm.cli import VERBS, load

    sections = table(recipe, "report")
    own = [f.name for f in fields(Section)]
    check_names(sections, (*own, *TABLES), "setting of [report]")
    wanted = build(Section, {name: sections[name] for name in own if name in sections}, "report")
    check_names(wanted.tables, TABLES, "table")
    measured = measured_by(recipe, out)
    judged = [name for name in wanted.tables if name in JUDGED]
    if judged and not (measured.world or measured.judges):
        raise UserError(f"report {judged[0]} {NO_JUDGE}")
    compasses, stages = examined(recipe, out), []
    for name in wanted.tables:
        if name == "compass" and not compasses:
            continue  # one that is used from elsewhere, and was not examined there
        verb, models = VERBS[f"report {name}"], compasses.values() if name == "compass" else models_of(recipe, out)
        runs = [out, *(run for run in models if run.parent != out)]
        settings = build(load(verb.settings), {"runs": runs, **table(sections, name)}, f"report.{name}")
        stages.append(Stage(f"report {name}", partial(load(verb.run), settings)))
    if wanted.trajectories:
        stages.append(Stage("trajectories", lambda: record_all(recipe, out, wanted.trajectories)))
    if wanted.page:
        stages.append(Stage("page", lambda: show_page(out)))
    return stages


def record_all(recipe: Mapping[str, Any], out: Path, steps: int) -> None:
    """The same seed through every model of each source, scored by its compass."""
    from tsdfm.view.record import record_trajectories

    folder, seed = out / "report" / "trajectories", int(recipe.get("seed", 0))
    shutil.rmtree(folder, ignore_errors=True)  # those of other steps or of models that are gone
    for source in sources_of(recipe):
        compass = Places.of(recipe, source, out)["compass"] if "compass" in names_of(recipe) else None
        record_trajectories(writers(recipe, source, out), compass, folder, steps=steps, seed=seed)


def show_page(out: Path) -> None:
    """Write the page, and say where it is."""
    from rich.console import Console

    from tsdfm.report.page.build import build_page

    Console().print(f"the report is {build_page(out)}: open it in a browser", soft_wrap=True, highlight=False)
