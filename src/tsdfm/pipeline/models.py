"""What is trained for one source: the teacher, and the compasses and students in the order they need each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.pipeline.done import examine, train
from tsdfm.pipeline.places import USE, Places, wanted_by
from tsdfm.pipeline.plan import Stage, check_names, section
from tsdfm.recipes import table
from tsdfm.settings import build, merge, nearest

MODEL_FIELDS = ("init_from", "teacher", "compass", "proposer")
"""Settings that take a model: the name of another section, or a path."""


@dataclass(frozen=True)
class Named:
    """A compass or a student of the recipe: its plain settings, and the other names they refer to."""

    name: str
    kind: str
    given: dict[str, Any]
    needs: frozenset[str]


def names_of(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Every model of a recipe, in its order: name → teacher, compass or student."""
    found = {kind: kind for kind in ("teacher", "compass") if kind in recipe}
    for many, kind in (("compasses", "compass"), ("students", "student")):
        for name in table(recipe, many):
            if name in found or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
                raise UserError(f"[{many}.{name}]: call it something else, of letters, digits, - _ and . (once)")
            found[name] = kind
    return found


def student_names(recipe: Mapping[str, Any], source: str) -> list[str]:
    """The students of a recipe that one source has."""
    return [named.name for named in all_named(recipe, Places.of(recipe, source, Path())) if named.kind == "student"]


def source_stages(recipe: Mapping[str, Any], source: str, out: Path) -> list[Stage]:
    """Everything that is trained for one source."""
    places = Places.of(recipe, source, out)
    stages = [teacher_stage(recipe, places)] if "teacher" in recipe and "teacher" not in places.used else []
    found = all_named(recipe, places)
    for named in in_order([named for named in found if named.name not in places.used]):
        make = compass_stages if named.kind == "compass" else student_stages
        stages += make(named, recipe, places)
    return stages


def teacher_stage(recipe: Mapping[str, Any], places: Places) -> Stage:
    """The teacher of one source."""
    from tsdfm.methods import method

    given = {"tokens": places.out / "tokens", **section(recipe, "teacher", places.source)}
    dfm = method("dfm")
    settings: Any = build(dfm.settings, {**given, "source": places.source, "out": places["teacher"]}, "teacher")
    dfm.check(settings)
    return Stage(f"teacher, {places.source} source", lambda: train(dfm.train, settings), settings.out.name)


def all_named(recipe: Mapping[str, Any], places: Places) -> list[Named]:
    """The compasses and students with their settings for one source, paths in the place of names."""
    known, source, found = names_of(recipe), places.source, []
    base = {"compass": section(recipe, "compass", source), "student": section(recipe, "student", source)}
    own = {
        "compass": {"compass": {}, **section(recipe, "compasses", source)},
        "student": section(recipe, "students", source),
    }
    for name, kind in known.items():
        if kind == "teacher":
            continue
        given = merge(base[kind], own_settings(own[kind], name))
        given.pop(USE, None)  # `places` has it; that of a section it is like, or of [compass], is not its own
        if source not in wanted_by(given.pop("sources", None), name, source):
            continue
        if kind == "student":
            given = student_defaults(given, name, known)
        needs: set[str] = set()
        placed = place(given, known, places, needs)
        found.append(Named(name, kind, placed, frozenset(needs)))
    return found


def own_settings(own: Mapping[str, Any], name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a section says itself, laid over the one it is `like`."""
    given = table(own, name)
    like = given.pop("like", None)
    if like is None:
        return given
    if like not in own or like in (*seen, name):
        raise UserError(
            f"{name} cannot be like {like!r}{nearest(str(like), [other for other in own if other != name])}"
        )
    return merge(own_settings(own, like, (*seen, name)), given)


def student_defaults(given: dict[str, Any], name: str, known: Mapping[str, str]) -> dict[str, Any]:
    """A student starts from the teacher and is guided by the compass, if it says nothing else."""
    asks = given.get("policy", "blind") != "blind" and "compass" in known
    learns = given.get("target") == "teacher"
    implied = (
        {"init_from": "teacher"} | ({"compass": "compass"} if asks else {}) | ({"teacher": "teacher"} if learns else {})
    )
    return {**implied, "name": name, **given}


def place(given: Mapping[str, Any], known: Mapping[str, str], places: Places, needs: set[str]) -> dict[str, Any]:
    """Plain settings with the places of the models they name; adds the names of those trained here to `needs`."""
    placed: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, Mapping):
            placed[key] = place(value, known, places, needs)
        elif key in MODEL_FIELDS and value in known:
            needs |= {value} - set(places.used)
            placed[key] = places[value]
        else:
            placed[key] = value
    return placed


def in_order(found: list[Named]) -> list[Named]:
    """The same, each after what it needs, otherwise as they stand in the recipe."""
    done, ordered, left = {"teacher"}, list[Named](), list(found)
    while left:
        ready = next((named for named in left if named.needs <= done), None)
        if ready is None:
            names = ", ".join(named.name for named in left)
            raise UserError(f"the recipe's models wait for each other, or for one their source does not have: {names}")
        left.remove(ready)
        ordered.append(ready)
        done.add(ready.name)
    return ordered


def compass_stages(named: Named, recipe: Mapping[str, Any], places: Places) -> list[Stage]:
    """A compass, and its examination."""
    from tsdfm.compass.negatives import STRATEGIES
    from tsdfm.compass.run import run
    from tsdfm.compass.settings import CompassSettings, ValidateSettings

    source, home = places.source, places[named.name]
    inputs = {"tokens": places.out / "tokens", "teacher": places["teacher"]}
    settings = build(CompassSettings, {**inputs, **named.given, "out": home}, section_name(named))
    settings.net.shape()
    check_names(settings.corrupt.weights(), tuple(STRATEGIES), "strategy")
    exam = build(ValidateSettings, {**section(recipe, "validate", source), "compass": home}, "validate")
    after = keys_needed(named, places, "teacher")
    return [
        Stage(f"{title(named)}, {source} source", lambda: train(run, settings), home.name, after),
        Stage(f"{title(named)} validation, {source} source", lambda: examine(exam), home.name, after),
    ]


def student_stages(named: Named, recipe: Mapping[str, Any], places: Places) -> list[Stage]:
    """A student."""
    from tsdfm.methods import method, student_method

    given = {"tokens": places.out / "tokens", **named.given, "out": places[named.name]}
    kind, values = student_method(given)
    chosen = method(kind)
    settings: Any = build(chosen.settings, values, section_name(named))
    chosen.check(settings)
    name = f"{title(named)}, {places.source} source"
    return [Stage(name, lambda: train(chosen.train, settings), settings.out.name, keys_needed(named, places))]


def keys_needed(named: Named, places: Places, *more: str) -> frozenset[str]:
    """The folder names of the models it needs that are trained here."""
    return frozenset(places.key(name) for name in {*named.needs, *more} - set(places.used))


def section_name(named: Named) -> str:
    """The recipe's section a mistake is in."""
    return {"compass": "compass", "student": "students"}[named.kind] + (
        "" if named.name == "compass" else f".{named.name}"
    )


def title(named: Named) -> str:
    """How the stage is announced."""
    return named.name if named.kind == "student" or named.name == "compass" else f"compass {named.name}"
