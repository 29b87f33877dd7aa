"""A recipe, read once. This is the one place that knows what the words of a recipe mean.

    extends = "tiny_cpu"              # start from another recipe; what this one says wins
    sources = ["uniform", "mask"]     # every model is trained for each of them
    seed = 1                          # of all that is trained and measured
    judge = false                     # a stage that the other recipe has, and this one has not

    [models.ts-dfm]
    method = "ts-dfm"                 # of `tsdfm.methods`, or "compass"; all other words are its settings
    like = "fs-dfm"                   # start from the settings of another model
    use = "tsdfm-stories"               # train nothing: take this run, checkpoint or bundle
    sources = ["uniform"]             # only for these
    init_from = "fs-dfm"              # a setting that takes a model takes a name of the recipe, or a path

    [start]                           # a causal model that flow models start from, by init_from = "start"
    source = "data/storyteller"       # as `tsdfm import` has it

    [source.mask.models.ts-dfm]       # what differs for one source
    loop.steps = 110

[corpus], [tokens], [start], [judge], [validate], [measure] and [report] have the settings of these stages. [teacher],
[compass], [compasses.NAME] and [students.NAME] are models too, whose method follows from what they say; [student] is
what all students have in common, and lies under what is said of each.

A file lies over the one it extends, model by model, and flags lie over all. A flag wins everywhere: `--set
student.loop.steps=20` reaches every student of every source, and beside it `--set models.ts-dfm.loop.steps=9` that one.
A flag that reaches nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.methods import student_method
from tsdfm.ranges import SEED, Range, shown
from tsdfm.recipes.trainers import COMPASS, kind, settings_known, student_settings, trainer
from tsdfm.settings import convert, defaults, hold, load_toml, merge, nearest, parse_toml, path_from

FOLDER = Path(__file__).parent
SOURCES = ("uniform", "mask")
STAGES = ("corpus", "tokens", "start", "judge", "measure", "report")
ALONE = ("teacher", "compass")  # sections that are one model
GROUPS = ("compasses", "students", "models")  # sections of models by name
BY_SOURCE = (*ALONE, "student", *GROUPS, "validate")
SECTIONS = ("extends", "seed", "sources", "source", *STAGES, *BY_SOURCE)
TEXTS = {"path", "name", "sources"}  # of which a corpus has one
NEW = {"method", "like", "use"}  # without which no model is made by flags
METHODS = {"teacher": "dfm", "compass": COMPASS.name, "compasses": COMPASS.name}  # of sections that do not say one
WORDS = ("method", "like", "use", "sources")  # of a model, that are not its method's settings
PART = re.compile(r'"([^"]*)"|([^.]+)')  # of a dotted name

Plain = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A model of the recipe for one source: its plain settings, in which names still stand for other models."""

    name: str
    source: str
    method: str
    values: Plain
    use: Any
    where: str
    """The section of the recipe that a mistake is in."""

    @property
    def kind(self) -> str:
        return kind(self.method)


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(recipe: str) -> Path:
    """The file of a recipe given by name (`tiny_cpu`) or path."""
    path = path_from(recipe, "the recipe")
    if recipe in shipped():
        return FOLDER / f"{recipe}.toml"
    if path.suffix == ".toml" or path.is_file():
        return path
    raise UserError(f"no recipe called {recipe!r}{nearest(recipe, shipped())}")


def read_recipe(recipe: str, flags: Sequence[str] = ()) -> Recipe:
    """A recipe by name or path, on top of the files it extends, under `--set` flags."""
    over = overrides(flags)
    instead = over.pop("extends", None)
    files, names, seen = list[Plain](), [recipe], list[Path]()
    while True:
        path = find(names[-1])
        if path.resolve() in seen:
            raise UserError(f"recipes extend each other in a circle: {', '.join(names)}")
        seen.append(path.resolve())
        own = load_toml(path)
        base = own.pop("extends", None)
        base = base if files or instead is None else instead
        files.insert(0, own)
        if base is None:
            return Recipe(files, over)
        if not isinstance(base, str):
            raise UserError(f"extends of recipe {names[-1]} takes the name of a recipe, not {shown(base)}")
        beside = path.parent / path_from(base, f"extends of recipe {names[-1]}")
        names.append(str(beside) if beside.suffix == ".toml" and beside.is_file() else base)


def overrides(pairs: Sequence[str]) -> Plain:
    """`("teacher.loop.steps=100",)` as nested plain values; what is given more than once makes a list.

    Lists, tables and texts in quotes are read as TOML; all else is text, which the setting reads as what it takes. A
    name with a dot of its own stands in quotes: `models."ts-tau-0.02".loop.steps=100`.
    """
    out: Plain = {}
    seen: dict[str, list[Any]] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        parts = [quoted or plain for quoted, plain in PART.findall(path.strip())]
        if not equals or not parts:
            raise UserError(f"--set takes section.name=value, not {shown(pair)}")
        value = toml_value(text)
        if parts[-1:] == ["sources"] and isinstance(value, str):
            value = value.split(",")
        earlier = seen.setdefault(path.strip(), [])
        earlier += value if isinstance(value, list) else [value]
        nested: Any = value if len(earlier) == 1 else list(earlier)
        for name in reversed(parts):
            nested = {name: nested}
        out = merge(out, nested)
    return out


def toml_value(text: str) -> Any:
    """A list, a table or a text in quotes as TOML has it; anything else is left as it is written."""
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, (str, list, dict)) else text


class Recipe:
    """What files and flags say together. `names` has every model in order, and the section that first speaks of it."""

    def __init__(self, files: Sequence[Plain], flags: Plain | None = None) -> None:
        self.names, named = dict[str, str](), dict[str, str]()
        merged = reduce(merge, (in_models(file, self.names) for file in files))
        self.files: Plain = {word: value for word, value in merged.items() if word not in STAGES or value is not False}
        self.flags: Plain = in_models(flags or {}, named, flags=True)
        for name, where in named.items():
            if NEW & own(self.flags, name).keys():
                self.names.setdefault(name, where)
        for raw in (self.files, self.flags):
            for name in (name for at in (None, *table(raw, "source")) for name in part(raw, at)["models"]):
                if name not in self.names:
                    raise UserError(f"the recipe has no model {name!r}{nearest(name, self.names)}")

    def section(self, name: str, source: str | None = None) -> Plain | None:
        """The settings of a stage; none where the recipe has no such section."""
        if not any(name in part(raw, at) for raw in (self.files, self.flags) for at in {None, source}):
            return None
        found: Plain = {}
        for raw in (self.files, self.flags):
            seed = {"seed": raw["seed"]} if "seed" in raw else {}
            if name == "corpus" and TEXTS & table(raw, name).keys():  # another text takes the place of the file's
                found = {key: value for key, value in found.items() if key not in TEXTS}
            found = merge(found, {"measure": seed, "judge": {"loop": seed} if seed else {}}.get(name, {}))
            found = merge(merge(found, table(raw, name)), table(part(raw, source), name) if source else {})
        return found

    @cached_property
    def seed(self) -> int:
        """The seed of what is drawn besides training and measuring."""
        found = int(convert(int, (self.files | self.flags).get("seed", 0), "seed"))
        hold(int, found, Range(**SEED), "seed")
        return found

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """What to train for: what the recipe says, or what its first model is of."""
        found = (self.files | self.flags).get("sources")
        if found == []:
            raise UserError("sources is empty: name uniform, mask, or both, or leave it out")
        for name in () if found else self.names:
            method = self._method(name, None)
            found = found or self._own(name).get("source") or (trainer(method).sources[0] if method else None)
        return listed(found or SOURCES[0], "source")

    @cached_property
    def models(self) -> tuple[Entry, ...]:
        """Every model, for every source it is for."""
        names = {"student": student_settings() | {*WORDS}, "compass": settings_known(COMPASS.name) | {*WORDS}}
        for raw in (part(raw, at) for raw in (self.files, self.flags) for at in (None, *SOURCES)):
            for of in names:
                known(table(raw, of), names[of], f"setting of [{of}]")
        found = [entry for source in self.sources for name in self.names if (entry := self._entry(name, source))]
        self._check_flags([entry for entry in found if entry.use is None])
        return tuple(found)

    def values_for(self, word: str) -> Plain:
        """The settings of a single command: of a stage, of a model, or of the first model of a method or kind.

        The other models of the recipe are left out of them: a single command is given paths.
        """
        if word in STAGES and (found := self.section(word)) is not None:
            return found
        for entry in sorted(self.models, key=lambda entry: entry.name != word):
            if word in (entry.name, entry.method, entry.kind):
                source = {"source": entry.source} if "source" in settings_known(entry.method) else {}
                found = {n: v for n, v in entry.values.items() if not (isinstance(v, str) and v in self.names)} | source
                usual = defaults(trainer(entry.method).settings)
                return {"policy": usual["policy"], **found} if "policy" in usual else found  # tells students apart
        raise UserError(f"the recipe has no {word} whose settings could be taken{nearest(word, [*self.names])}")

    def _own(self, name: str, source: str | None = None) -> Plain:
        """What is said of a model itself."""
        return merge(own(self.files, name, source), own(self.flags, name, source))

    def _line(self, name: str, source: str | None) -> list[str]:
        """The models it is like, the farthest first, and the model."""
        line = [name]
        while True:
            usual = "compass" if self.names[line[0]].startswith("compasses.") and "compass" in self.names else None
            like = self._own(line[0], source).get("like", usual)
            if like is None:
                return line
            if not isinstance(like, str) or like not in self.names or like in line:
                others = [other for other in self.names if other != line[0]]
                raise UserError(f"{line[0]} cannot be like {shown(like)}{nearest(shown(like), others)}")
            line.insert(0, like)

    def _method(self, name: str, source: str | None) -> str | None:
        """A model's method; none of a student that leaves it to its settings."""
        line = self._line(name, source)
        said = [each["method"] for each in (self._own(other, source) for other in line) if "method" in each]
        found = said[-1] if said else METHODS.get(self.names[line[0]].split(".")[0])
        return None if found is None else trainer(found).name

    def _entry(self, name: str, source: str) -> Entry | None:
        """A model for a source; none where it is not for that source."""
        method, line = self._method(name, source), self._line(name, source)
        of = "student" if method is None else kind(method)
        values = common(self.files, of, source)
        for each in line:
            values = merge(values, self._own(each, source))
        values = merge(merge(values, common(self.flags, of, source)), own(self.flags, name, source))
        sources, use = values.get("sources"), self._own(name, source).get("use")
        if any(self.names[each].startswith("students.") for each in line) and (method is None or "policy" in values):
            method, values = student_method(values)
        if method is None:
            raise UserError(f"[{self.names[name]}] says no method: give `method` or `like`")
        keep = settings_known(method).union(*(self._own(each, source) for each in line)) - {*WORDS}
        wanted = trainer(method).sources if sources is None else listed(sources, f"source of {name}")
        entry = Entry(name, source, method, {n: v for n, v in values.items() if n in keep}, use, self.names[name])
        return entry if source in wanted else None

    def _check_flags(self, trained: Sequence[Entry]) -> None:
        """Refuse a flag that reaches nothing of what is trained."""
        for source in (None, *table(self.flags, "source")):
            here, flags = [e for e in trained if source in (None, e.source)], part(self.flags, source)
            said = [(of, name) for of in ("student", "compass") for name in table(flags, of) if name not in WORDS]
            missed = [f"{of}.{n}" for of, n in said if not any(e.kind == of and n in e.values for e in here)]
            named = [name for name, values in flags["models"].items() if values.keys() - {*WORDS}]
            missed += [self.names[name] for name in named if name not in {e.name for e in here}]
            missed += ["validate"] if "validate" in flags and not any(e.kind == "compass" for e in here) else []
            if missed:
                where = f"source.{source}." if source else ""
                raise UserError(f"--set {where}{missed[0]} reaches nothing that the recipe trains")


def in_models(raw: Plain, names: dict[str, str], *, flags: bool = False, inside: bool = False) -> Plain:
    """A file, or the flags, with every model in `models`; adds to `names` the section that speaks of each.

    What a flag says of [compass] stays there: it is meant for all compasses.
    """
    known(raw, BY_SOURCE if inside else SECTIONS, "section of a source" if inside else "section")
    known(table(raw, "source"), SOURCES, "source")
    if "use" in table(raw, "student"):
        raise UserError("[student] is what all students have in common: say `use` in [students.NAME]")
    models, alone = dict[str, Any](), [name for name in ALONE if name in raw and not (flags and name == "compass")]
    for section in (*alone, *GROUPS):
        for name in [section] if section in alone else table(raw, section):
            where = section if section in alone else f"{section}.{name}"
            if name in models or not re.fullmatch(r"[\w.-]*[^\W_][\w.-]*", name):
                raise UserError(f"[{where}]: call it something else, of letters, digits, - _ and . (once)")
            models[name] = table(raw if section in alone else raw[section], name)
            names.setdefault(name, where)
    found = {name: value for name, value in raw.items() if name not in (*alone, *GROUPS)} | {"models": models}
    by_source = table(raw, "source")
    found["source"] = {at: in_models(table(by_source, at), {}, flags=flags, inside=True) for at in by_source}
    if words := {name: value for name, value in table(found, "compass").items() if name in WORDS}:
        models["compass"] = merge(table(models, "compass"), words)
        names.setdefault("compass", "compass")
    return found


def part(raw: Plain, source: str | None) -> Plain:
    """What is said for one source, or for all."""
    return raw if source is None else table(table(raw, "source"), source)


def own(raw: Plain, name: str, source: str | None = None) -> Plain:
    """What is said of a model."""
    general, narrow = table(table(raw, "models"), name), table(table(part(raw, source), "models"), name)
    return merge(general, narrow) if source else general


def common(raw: Plain, kind: str, source: str) -> Plain:
    """What is said of all models of a kind."""
    seed = {"loop": {"seed": raw["seed"]}} if "seed" in raw else {}
    return merge(merge(seed, table(raw, kind)), table(part(raw, source), kind))


def table(values: Plain, name: str) -> Plain:
    """A section, or an empty one; it must be a table of settings."""
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"[{name}] of the recipe must be a table of settings, not {found!r}")
    return found


def listed(value: Any, what: str) -> tuple[str, ...]:
    """Names of sources: one, or a list."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(name, str) for name in found):
        raise UserError(f"{what} takes names, not {shown(value)}")
    found = tuple(found)
    known(found, SOURCES, what)
    return found


def known(found: Iterable[str], names: Iterable[str], what: str) -> None:
    """Answer a name that is not known with the nearest that is."""
    for name in found:
        if name not in (names := list(names)):
            raise UserError(f"unknown {what} {name!r} in the recipe{nearest(str(name), names)}")
