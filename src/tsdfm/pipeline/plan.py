"""The typed plan of a recipe: every setting is read and checked here, so that a mistake in the last stage shows before
the first one runs. What comes after (stages, jobs, reports, the doctor) works on the plan and sees no plain value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tsdfm.compass.settings import ValidateSettings
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.world import world_named, world_of_corpus
from tsdfm.errors import UserError
from tsdfm.judges.settings import JudgeTrainSettings
from tsdfm.public.settings import ImportSettings, check_start
from tsdfm.recipes import Entry, Recipe, known
from tsdfm.recipes.recipe import table
from tsdfm.recipes.trainers import kind, settings_known, trainer
from tsdfm.settings import Name, Settings, build, option, path_from, path_settings
from tsdfm.tokens.settings import TokensSettings

if TYPE_CHECKING:
    from tsdfm.report.settings import MeasureSettings

T = TypeVar("T")
START = "start"
JUDGE = "judge"
USUAL = {"init_from": "teacher"}
"""Which model a needed setting takes if nothing is said; for others, the one of the setting's own name."""
NO_JUDGE = "needs a judge: give measure.judges (docs/judges.md), a [judge] section, or measure.world for stories"


@dataclass(frozen=True)
class Model:
    """A model of one source: trained here by `settings`, or used from elsewhere (`spec` is what its manifest says)."""

    name: str
    source: str
    method: str
    path: Path
    settings: Any = None
    needs: frozenset[str] = frozenset()
    """Keys of the models that must be there before: those that are trained here."""
    exam: ValidateSettings | None = None
    """How it is examined after training, if it is a compass."""
    spec: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """What its folder is called if it is trained here."""
        return f"{self.name}-{self.source}"

    @property
    def trained(self) -> bool:
        return self.settings is not None

    @property
    def is_compass(self) -> bool:
        return kind(self.method) == "compass"


@dataclass(frozen=True)
class Table:
    """A table of the report, and its settings, of which `tsdfm.report.desk.run` makes it."""

    name: str
    settings: Any


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Settings):
    """What [report] itself may say; `[report.policy]` has the settings of `tsdfm report policy`, and so on."""

    tables: tuple[Name, ...] = option((), "tables of `tsdfm report`, by name")
    trajectories: int = option(
        0, "steps of the trajectories that are recorded for the player; 0 records none", low=0, high=2**16
    )
    page: bool = option(True, "write index.html")


@dataclass(frozen=True)
class Plan:
    """All that a recipe asks for, in the order in which it is done; what it does not ask for is None."""

    out: Path
    seed: int
    sources: tuple[str, ...]
    corpus: CorpusSettings | None
    tokens: TokensSettings | None
    starts: tuple[ImportSettings, ...]
    """A causal model as the start of flow models, once for each source."""
    judge: JudgeTrainSettings | None
    models: tuple[Model, ...]
    """Source by source, in the recipe's order."""
    measure: MeasureSettings | None
    tables: tuple[Table, ...] = ()
    report: ReportSettings | None = None

    def training(self) -> list[Model]:
        """The models that are trained, each after what it needs, otherwise in the recipe's order."""
        left, ordered = [model for model in self.models if model.trained], dict[str, Model]()
        while left:
            ready = next((model for model in left if model.needs <= {*ordered, JUDGE}), None)
            if ready is None:
                names = ", ".join(dict.fromkeys(model.name for model in left))
                why = "wait for each other, or for one their source does not have"
                raise UserError(f"the recipe's models {why}: {names}")
            left.remove(ready)
            ordered[ready.key] = ready
        return list(ordered.values())

    def writers(self, source: str | None = None) -> list[Path]:
        """Where the models that write texts lie, of all sources or of one."""
        return [m.path for m in self.models if not m.is_compass and source in (None, m.source)]

    def compass(self, source: str) -> Model | None:
        """The first compass of a source."""
        return next((model for model in self.models if model.is_compass and model.source == source), None)

    def examined(self) -> dict[str, Path]:
        """The compass of each source that is validated here, or that is used from elsewhere and was validated there."""
        found = {model.source: model for source in self.sources if (model := self.compass(source))}
        return {s: m.path for s, m in found.items() if m.trained or (m.path / "validation.json").is_file()}


def make_plan(recipe: Recipe, out: Path) -> Plan:
    """Read a recipe into a plan; what cannot be done is refused in one line."""
    from tsdfm.report.settings import MeasureSettings

    def read(cls: type[T], name: str, first: Mapping[str, Any], last: Mapping[str, Any]) -> T | None:
        given = recipe.section(name)
        return None if given is None else build(cls, {**first, **given, **last}, name)

    corpus = read(CorpusSettings, "corpus", {}, {"out": out / "corpus"})
    text = {} if "shards" in (recipe.section("tokens") or {}) else {"corpus": out / "corpus"}
    if corpus is not None:
        corpus.all_sources()
    judge = read(JudgeTrainSettings, "judge", {"tokens": out / "tokens"}, {"out": out / "judge"})
    if judge is not None:
        judge.net.shape()
    judges = (recipe.section("measure") or {}).get("judges", [])
    judges = [*([judge.out] if judge else []), *([judges] if isinstance(judges, str) else judges)]
    world = world_of_corpus(None if corpus is None else corpus.name)  # whose exact judge reads what models write
    plan = Plan(
        out=out,
        seed=recipe.seed,
        sources=recipe.sources,
        corpus=corpus,
        tokens=read(TokensSettings, "tokens", {**text, "out": out / "tokens"}, {}),
        starts=starts(recipe, out),
        judge=judge,
        models=tuple(model for source in recipe.sources for model in source_models(recipe, source, out)),
        measure=read(MeasureSettings, "measure", {"world": world}, {"judges": [*map(str, judges)]}),
    )
    plan.training()  # refuses models that wait for each other
    if plan.measure is not None and plan.measure.frontier and not (plan.measure.world or plan.measure.judges):
        raise UserError(f"measure.frontier {NO_JUDGE}")
    if plan.measure is not None and plan.measure.world:
        world_named(plan.measure.world)
    return plan if recipe.section("report") is None else with_report(plan, recipe)


def starts(recipe: Recipe, out: Path) -> tuple[ImportSettings, ...]:
    """What [start] asks for: a causal model as the start of flow models of each source."""
    if (section := recipe.section(START)) is None:
        return ()
    if START in recipe.names:
        raise UserError(f"[{START}] is a causal model to start from: call the model of that name something else")
    for word in ("noise", "out"):
        if word in section:
            raise UserError(f"{START}.{word} follows from the recipe: leave it out")
    usual = {"tokens": out / "tokens"}
    own = [{"noise": source, "out": out / f"{START}-{source}"} for source in recipe.sources]
    made = tuple(build(ImportSettings, {**usual, **section, **each}, START) for each in own)
    for each in made:
        check_start(each, f"{START}.")
    return made


def source_models(recipe: Recipe, source: str, out: Path) -> list[Model]:
    """The models of one source."""
    entries = [entry for entry in recipe.models if entry.source == source]
    used = {e.name: used_model(e) for e in entries if e.use is not None}
    places = {e.name: used[e.name].path if e.name in used else out / f"{e.name}-{source}" for e in entries}
    ready = {*used, *([START] if recipe.section(START) is not None else [])}
    every = {name: places.get(name, out / f"{name}-{source}") for name in {*recipe.names, *ready}}
    if recipe.section(JUDGE) is not None:
        if JUDGE in recipe.names:
            raise UserError(f"[{JUDGE}] is a judge of the pipeline: call the model of that name something else")
        every[JUDGE] = out / JUDGE
    return [used.get(e.name) or trained_model(e, recipe, every, frozenset(ready), out) for e in entries]


def trained_model(entry: Entry, recipe: Recipe, places: Mapping[str, Path], used: frozenset[str], out: Path) -> Model:
    """The typed settings of a model, with paths in the place of names."""
    method, takes = trainer(entry.method), settings_known(entry.method)
    usual = {need: USUAL.get(need, need) for need in method.needs}
    if entry.values.get("target") == "teacher":
        usual["teacher"] = "teacher"
    given: dict[str, Any] = {n: name for n, name in usual.items() if name in recipe.names} | entry.values
    needs = set[str]()
    given = placed(given, {*path_settings(method.settings, models=True), JUDGE}, places, needs)
    first: dict[str, Any] = {"tokens": out / "tokens"} | ({"name": entry.name} if entry.name != method.label else {})
    given = {**first, **given, "source": entry.source, "out": places[entry.name]}
    given = {name: value for name, value in given.items() if name in takes or name in entry.values}
    settings: Any = build(method.settings, given, entry.where)
    method.check(settings)
    exam = None
    if kind(entry.method) == "compass":
        asked = recipe.section("validate", entry.source) or {}
        exam = build(ValidateSettings, {**asked, "compass": settings.out}, "validate")
    ours = {JUDGE} - {*recipe.names}  # one for all sources
    keys = frozenset(name if name in ours else f"{name}-{entry.source}" for name in needs - used)
    return Model(entry.name, entry.source, entry.method, settings.out, settings, keys, exam)


def placed(
    values: Mapping[str, Any], takes_model: Iterable[str], places: Mapping[str, Path], needs: set[str], prefix: str = ""
) -> dict[str, Any]:
    """Plain settings with the places of the models they name; adds those names to `needs`.

    `takes_model` has dotted names, and `prefix` is that of the table `values`.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = placed(value, takes_model, places, needs, f"{prefix}{key}.")
        elif prefix + key in takes_model and isinstance(value, str) and value in places:
            needs.add(value)
            found[key] = str(places[value]) if key == JUDGE else places[value]  # a judge is a word, and may be a path
        else:
            found[key] = value
    return found


def used_model(entry: Entry) -> Model:
    """The model that `use` names, if it may stand for this one: there, whole, of the same kind and source."""
    from tsdfm.methods import method_of
    from tsdfm.store.bundle import find_shipped, find_weights

    name, use, wanted = entry.name, entry.use, entry.kind
    if not isinstance(use, str) or not use:
        raise UserError(f"{name}: use takes the path of a run, a checkpoint or a bundle, not {use!r}")
    path = path_from(use, f"{name}: use")
    if not path.exists() and find_shipped(path) is None:
        raise UserError(f"{name}: use says {path}, and there is no such run, checkpoint or shipped model here")
    try:
        found = find_weights(path, wanted, which="ema", choose="best" if wanted == "compass" else "newest").manifest
    except UserError as problem:
        raise UserError(f"{name}: use says {path}: {problem}") from None
    spec, made_by = found.get("compass" if wanted == "compass" else "model"), method_of(found)
    if not isinstance(spec, Mapping) or (made_by is not None and kind(made_by.name) != wanted):
        few = spec if wanted == "teacher" and isinstance(spec, Mapping) and not spec.get("step_size") else None
        instead = f": say models.{name}.method={few.get('method')}" if few else ""  # it may stand for one
        raise UserError(f"{name}: use says {path}, which is no {wanted} (its stage is {found.get('stage')!r}){instead}")
    if (source := spec.get("source")) != entry.source:
        raise UserError(
            f"{name}: use says {path}, of the {source} source, and this is {entry.source}: "
            f"say it under [source.{source}…] alone"
        )
    return Model(name, entry.source, entry.method, path, spec=spec)


def with_report(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with the tables that [report] names, each with its settings, and the page."""
    from tsdfm.report import settings as known_settings
    from tsdfm.report.commands import TABLES, settings_of

    sections, own = recipe.section("report") or {}, [field.name for field in fields(ReportSettings)]
    known(sections, (*own, *TABLES), "setting of [report]")
    report = build(ReportSettings, {name: sections[name] for name in own if name in sections}, "report")
    known(report.tables, TABLES, "table")
    for name in recipe.flags.get("report", {}):
        if name not in (*own, *report.tables):
            raise UserError(f"--set report.{name} reaches nothing: report.tables does not name it")
    measured, tables = plan.measure or known_settings.MeasureSettings(), list[Table]()
    for name in report.tables:
        if TABLES[name].judged and not (measured.world or measured.judges or plan.judge):
            raise UserError(f"report {name} {NO_JUDGE}")
        models = [*plan.examined().values()] if name == "compass" else plan.writers()
        if name == "compass" and not models:
            continue  # one that is used from elsewhere, and was not examined there
        kind = getattr(known_settings, settings_of(name))
        given = {"runs": [plan.out, *(path for path in models if path.parent != plan.out)], **table(sections, name)}
        tables.append(Table(name, build(kind, given, f"report.{name}")))
    return replace(plan, tables=tuple(tables), report=report)
