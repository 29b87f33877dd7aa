"""Settings are frozen dataclasses. This file turns a recipe (TOML) and command-line flags into one, and back.

One typed class is the Python call, the recipe section and the flags of a stage at once:

    @dataclass(frozen=True, kw_only=True)
    class TeacherSettings:
        steps: int = option(1000, "optimiser steps")
        net: NetSettings = option(NetSettings(), "the velocity network")

    build(TeacherSettings, {"steps": 10, "net": {"preset": "tiny"}})     # from a recipe
    add_flags(parser, TeacherSettings)  # --steps 10 --net.preset tiny; `flag_values` reads them back

Why not tyro, which reads the same classes: one conversion (`convert`) serves recipes, flags and manifests here, so that
a mistake reads the same in each and is one line; flags lie over a recipe that need not be whole; lists may be parted by
commas. tyro would take the place of the hundred lines about flags, for three more packages and 0.2 s at every start.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import functools
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tsdfm.errors import UserError
from tsdfm.ranges import ANY, Range, shown, wrong

T = TypeVar("T")
Name = Annotated[str, "a name"]
"""Text without commas, of a method or a table, say: a list of names may be parted by commas, one of texts may not.

Where all names are known beforehand, a `Literal` says which, and its lists are parted in the same way.
"""
RecipeName = Annotated[str, "a recipe"]
"""A recipe that comes with tsdfm, or the path of a file."""
ModelPath = Annotated[Path, "a model"]
"""A run, a checkpoint or a bundle: its path, or the name of a shipped model."""
OutFile = Annotated[Path, "a file to write"]
"""A file that a command writes, and may write over, unless it is part of an artifact (`OWN`)."""
OWN = {"manifest.json", "state.json", "best.json", "progress.json", "tokenizer.json", "metrics.jsonl", "card.md"}
OWN_ENDINGS = {".safetensors", ".bin", ".gz"}
ASIDE = {"resume", "tensorboard", "wandb"}
"""Settings that say how a run was started or who is told of it, not what is made."""


def option(default: T, help: str, *, alias: str | None = None, **ends: float) -> T:
    """A settings field with its default and one line of help; `alias` is another word for its flag.

    `ends` are the ends of a number's range (`tsdfm.ranges`): low and high, which belong to it, above and below. Of a
    list they hold each item to it. A class that overrides a field without a range keeps the one it had.
    """
    about = {"help": help, "alias": alias, "range": Range(**ends)}
    if dataclasses.is_dataclass(default) or isinstance(default, (list, dict)):
        made: Any = dataclasses.field(default_factory=lambda: default, metadata=about)
    else:
        made = dataclasses.field(default=default, metadata=about)
    return typing.cast(T, made)


def required(help: str, **ends: float) -> Any:
    """A settings field without a default: the recipe or the command line must give it."""
    return dataclasses.field(metadata={"help": help, "range": Range(**ends)})


class Settings:
    """What settings classes derive from: however one is made, its numbers are in their ranges and its names known.

    A class that looks at more of itself in `__post_init__` calls this one's first.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in hints_of(cls).items():
            hold(kind, getattr(self, name), range_of(cls, name), name)


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """The types of a settings class's fields, by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@functools.cache
def range_of(cls: Any, name: str) -> Range:
    """The range of a field: its own, or that of the nearest class above it which says one."""
    for each in cls.__mro__:
        field = getattr(each, "__dataclass_fields__", {}).get(name)
        if field is not None and field.metadata.get("range", ANY).bounded:
            found: Range = field.metadata["range"]
            return found
    return ANY


def hold(kind: Any, value: Any, held_to: Range, where: str) -> None:
    """Refuse a number, or a list of them, outside its range, a word that is none of a `Literal`'s, and wrong types."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        hold(args[0], value, held_to, where)
        if kind == OutFile:
            check_output(value, where)
    elif origin in (types.UnionType, typing.Union):
        if value is not None:
            hold(next(a for a in args if a is not type(None)), value, held_to, where)
    elif origin is tuple and isinstance(value, Sequence):
        for item in value:
            hold(args[0], item, held_to, where)
    elif origin is typing.Literal and value not in args:
        raise UserError(
            f"{where} takes one of {', '.join(map(str, args))}, not {shown(value)}{closest(shown(value), args)}"
        )
    elif kind in (int, float) and (problem := wrong(kind, value, held_to)):
        raise UserError(f"{where} {problem}")
    elif kind in (str, bool) and not isinstance(value, kind):
        raise UserError(f"{where} takes {'text' if kind is str else 'true or false'}, not {shown(value)}")


def check_output(path: Path, where: str) -> None:
    """Refuse to write over a part of a run, of tokens, of a corpus or of a bundle, or where a folder is."""
    if path.is_dir():
        raise UserError(f"{where} takes a file, and {path} is a folder: give a file in it")
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise UserError(f"{where} cannot be {path}: {above} is no folder; choose another")
    if path.exists() and (path.name in OWN or path.suffix in OWN_ENDINGS):
        raise UserError(f"{where} would write over {path}, which is part of an artifact: give another file")


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Make a settings object from plain values; unknown keys are answered with the nearest known one."""
    of: Any = cls
    hints, known = hints_of(of), {f.name: f for f in dataclasses.fields(of)}
    place = f" in [{where}]" if where else ""
    for key in values:
        if key not in known:
            raise UserError(f"unknown setting {key!r}{place}{nearest(key, known)}")
    missing = [n for n, f in known.items() if n not in values and _has_no_default(f)]
    if missing:
        raise UserError(f"missing setting {missing[0]!r}{place}: {known[missing[0]].metadata.get('help', 'required')}")
    made = {n: convert(hints[n], v, _dotted(where, n)) for n, v in values.items()}
    for name, value in made.items():
        hold(hints[name], value, range_of(of, name), _dotted(where, name))
    return cls(**made)


def convert(kind: Any, value: Any, where: str) -> Any:
    """Read `value` (from TOML or a flag) as type `kind`, or say which setting is wrong and what it takes."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return convert(args[0], value, where)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        if isinstance(value, Mapping):
            return build(typing.cast(type, kind), value, where)
        raise UserError(f"{where} takes a table of settings, not {shown(value)}")
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            if type(None) in args:
                return None
            raise UserError(f"{where} may not be none")
        return convert(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Literal:
        hold(kind, value, ANY, where)
        return value
    if origin is tuple:
        items = _items(value, args[0])
        if not isinstance(items, Sequence):
            raise UserError(f"{where} takes a list, not {shown(value)}")
        return tuple(convert(args[0], item, where) for item in items)
    return _scalar(kind, value, where)


def _items(value: Any, kind: Any) -> Any:
    """The items of a list: as they are, or parted by commas; a flag may be repeated besides.

    Numbers and names (`Name`, `Literal`) are parted; text and paths are not: they may have commas of their own.
    """
    words = [value] if isinstance(value, str) else value
    whole = kind in (str, Path, ModelPath) or not isinstance(words, Sequence)
    if whole or not all(isinstance(word, str) for word in words):
        return words
    return [item.strip() for word in words for item in word.split(",")]


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise UserError(f"{where} takes true or false, not {shown(value)}")
    if kind in (int, float):
        number = None if isinstance(value, bool) else _number(kind, value)
        if number is None:
            raise UserError(f"{where} takes {'a whole number' if kind is int else 'a number'}, not {shown(value)}")
        return number
    if kind is Path and isinstance(value, (str, Path)):
        return path_from(value, where)
    if kind is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"{where} takes {getattr(kind, '__name__', kind)}, not {shown(value)}")


def path_from(text: str | Path, where: str) -> Path:
    """`text` as a path, with ~ and ~NAME as home folders. What can be the path of nothing here is refused, and said.

    So nobody who reads or resolves a setting later has to reckon with it.
    """
    if text == "":
        raise UserError(f"{where} is empty: give a path, or leave it out")
    try:
        str(text).encode()
        path = Path(text).expanduser()
    except UnicodeEncodeError:
        raise UserError(f"{where} cannot be {str(text)!r} (its bytes are no UTF-8 text): rename it") from None
    except RuntimeError:
        raise UserError(
            f"{where}: there is no home folder {Path(text).parts[0]}; give the whole path of a file of that name"
        ) from None
    try:
        path.exists()
        path.resolve()
    except OSError as problem:
        raise UserError(f"{where} cannot be {str(text)!r} ({problem.strerror})") from None
    except (RuntimeError, ValueError) as problem:  # links in a circle, a null character
        raise UserError(f"{where} cannot be {str(text)!r} ({problem})") from None
    return path


def _number(kind: type, value: Any) -> int | float | None:
    """`value` as a number of `kind`, exactly, or None; 1e3 and 1000.0 are whole numbers too."""
    try:
        if kind is int and isinstance(value, (int, str)):
            with contextlib.suppress(ValueError):  # not by way of a float, which rounds above 2^53
                return int(value)
        number = float(value)
        if kind is float:
            return number
        return int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def to_dict(settings: Any) -> Any:
    """Plain values (for JSON manifests and TOML) of a settings object."""
    if dataclasses.is_dataclass(settings):
        return {f.name: to_dict(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
    if isinstance(settings, (tuple, list)):
        return [to_dict(item) for item in settings]
    return str(settings) if isinstance(settings, Path) else settings


def defaults(cls: type) -> dict[str, Any]:
    """Plain values of all settings that have a default: what older manifests, which lack a newer setting, meant."""
    out = dict[str, Any]()
    for field in dataclasses.fields(typing.cast(Any, cls)):
        if field.default is not dataclasses.MISSING:
            out[field.name] = to_dict(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            out[field.name] = to_dict(field.default_factory())
    return out


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top; tables are merged key by key."""
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        out[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return out


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    out: dict[str, Any] = {}
    for name, value in table.items():
        out.update(flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return out


def nearest(word: str, known: Any) -> str:
    """`; did you mean 'x'?` for the closest known word, or the list of what is known."""
    return closest(word, known) or f"; known: {', '.join(str(k) for k in known)}"


def closest(word: str, known: Any) -> str:
    """`; did you mean 'x'?` for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def add_flags(parser: argparse.ArgumentParser, cls: type) -> None:
    """Give `parser` one flag for each field of `cls`; nested settings become `--group.name` under their own heading."""
    for title, fields in _groups(cls):
        group = parser.add_argument_group(title) if title else parser
        for name, kind, default, text in fields:
            shown = "required" if default is dataclasses.MISSING else f"default {_show(default)}"
            group.add_argument(
                f"--{name.replace('_', '-')}",
                *aliases(cls, name),
                dest=name,
                default=argparse.SUPPRESS,
                metavar=_metavar(kind),
                action="append" if typing.get_origin(kind) is tuple else "store",
                nargs="?" if kind is bool else None,
                const="true" if kind is bool else None,
                help=f"{text} ({shown})".replace("%", "%%"),
            )


def aliases(cls: type, name: str) -> list[str]:
    """Other words for the flag of a field."""
    found = [f.metadata.get("alias") for f in dataclasses.fields(typing.cast(Any, cls)) if f.name == name]
    return [f"--{alias}" for alias in found if alias]


def switches(cls: type) -> set[str]:
    """The flags of `cls` that are on or off."""
    return {f"--{name.replace('_', '-')}" for name, kind, *_ in flags_of(cls) if kind is bool}


def flags_of(cls: type) -> Iterator[tuple[str, Any, Any, str]]:
    """(dotted name, type, default, help) of every setting of `cls` that has a flag."""
    for _, fields in _groups(cls):
        yield from fields


def path_settings(cls: type, *, models: bool = False) -> set[str]:
    """The dotted names of the settings of `cls` that take a path, or those alone that take a model (`ModelPath`)."""
    wanted = (ModelPath,) if models else (ModelPath, Path)
    kinds = ((name, (kind, *typing.get_args(kind))) for name, kind, *_ in flags_of(cls))
    return {name for name, each in kinds if any(kind in wanted for kind in each)}


def comparable(values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Plain settings of `cls` that say what is made, by their dotted names: not `ASIDE`, nor those with a path."""
    paths = path_settings(cls)
    found = {name: value for name, value in flat(values).items() if name not in paths}
    return {name: value for name, value in found.items() if name.rpartition(".")[2] not in ASIDE}


def flag_values(found: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The flags that were given, as the nested plain values `build` takes."""
    out: dict[str, Any] = {}
    names = {name for name, *_ in flags_of(cls)}
    for name in names & set(found):
        *path, last = name.split(".")
        table = out
        for part in path:
            table = table.setdefault(part, {})
        table[last] = found[name]
    return out


DEEPEST = 100  # lists and tables in each other: what goes through them one inside the other must not fail
TOO_DEEP = f"lists and tables lie in each other more than {DEEPEST} deep"


def no_deeper(value: T) -> T:
    """`value`, if it is nested no deeper than can be gone through."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inside for item in items if isinstance(item, (dict, list))]
        if not level:
            return value
    raise ValueError(TOO_DEEP)


def load_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values, or one clear line."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no recipe at {path}") from None
    except OSError as problem:
        raise UserError(f"cannot read the recipe {path} ({problem.strerror})") from None
    except ValueError as problem:
        raise UserError(f"{path} is not valid TOML: {problem}") from None


LONG_NAME = re.compile(r"""(?<!["'\w-])(?:["'\w-]++\s*+\.\s*+){101}""")


def parse_toml(text: str) -> dict[str, Any]:
    """The values of TOML; a ValueError of a few words for all that is none, or could be used for nothing."""
    if LONG_NAME.search(text):  # the parser would take minutes
        raise ValueError(TOO_DEEP)
    value: dict[str, Any] = no_deeper(parsed(tomllib.loads, text, tomllib.TOMLDecodeError))
    return value


def parsed(loads: Callable[[str], Any], text: str, wrong: type[ValueError]) -> Any:
    """What a parser, which raises `wrong`, makes of a text; a ValueError of a few words for what is too much for it."""
    try:
        return loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except wrong:
        raise
    except ValueError:  # of Python's, for whole numbers of thousands of digits
        raise ValueError("a number in it has thousands of digits") from None


def _groups(cls: type, prefix: str = "", title: str = "") -> Iterator[tuple[str, list[tuple[str, Any, Any, str]]]]:
    hints = hints_of(cls)
    plain, nested = [], []
    for f in dataclasses.fields(typing.cast(Any, cls)):
        text = f.metadata.get("help", "")
        if told := range_of(cls, f.name).told:
            text += f"; {told}"
        if dataclasses.is_dataclass(hints[f.name]):
            nested.append((f, text))
        elif not _is_table_list(hints[f.name]):
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            plain.append((prefix + f.name, hints[f.name], default, text))
    yield title, plain
    for f, text in nested:
        yield from _groups(hints[f.name], f"{prefix}{f.name}.", f"{prefix}{f.name}: {text}")


def _is_table_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _metavar(kind: Any) -> str:
    if kind == Name:
        return "NAME"
    args = [a for a in typing.get_args(kind) if a is not type(None) and a is not Ellipsis]
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return "{" + ",".join(map(str, args)) + "}"
    if origin is tuple:
        return "TEXT" if args[0] is str else f"{_metavar(args[0])},…"
    if args:
        return _metavar(args[0])
    return {int: "N", float: "X", bool: "true|false", Path: "PATH"}.get(kind, "TEXT")


def _show(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (tuple, list)):
        return ",".join(map(str, default)) or "empty"
    return "none" if default is None else str(default)


def _has_no_default(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
