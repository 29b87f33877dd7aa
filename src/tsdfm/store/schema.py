"""What a file must hold: one `TypedDict` for each kind of JSON file, checked where the file is read.

    class Best(TypedDict):
        step: Count
        metric: NotRequired[str]

    read_record(folder / "best.json", Best)["step"]     # a whole number that is not negative, or one clear line

Keys that the class does not name are let through: a newer version may write more. After the check the plain values are
used as they are, and mypy knows their types. A dataclass can stand for the dictionary of its fields.

Why not msgspec or pydantic, which do the same and more: what reads a run must work wherever torch, numpy and
safetensors do, GPU machines where nothing can be installed among them, and this is one function. The ranges are those
of the settings (`tsdfm.ranges`).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, Required, TypeVar

from tsdfm.errors import UserError
from tsdfm.ranges import ANY, Range, shown, wrong
from tsdfm.store.files import MEND, read_json

T = TypeVar("T")
Count = Annotated[int, Range(low=0, high=2**48)]
"""How many of something."""
Sha256 = Annotated[str, 64]
"""A hash in hexadecimal digits."""


class Wrong(ValueError):
    """What is wrong with a value, and where."""


def read_record(path: str | Path, kind: type[T], mend: str = MEND) -> T:
    """The JSON object of a file, checked to be of `kind` (a `TypedDict`); `mend` says what to do where it is not."""
    return checked(read_json(path, mend), kind, path, mend)


def checked(value: Any, kind: type[T], path: str | Path, mend: str = MEND) -> T:
    """`value`, which comes from the file at `path`, if it is of `kind`."""
    try:
        check(kind, value)
    except Wrong as problem:
        raise UserError(f"{path} is damaged ({problem}): {mend}") from None
    return typing.cast(T, value)


def check(kind: Any, value: Any, where: str = "") -> None:
    """Raise `Wrong` unless plain JSON `value` is of type `kind`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (kind in (None, type(None)) and value is None):
        return
    if origin is Annotated:
        _annotated(args, value, where)
    elif typing.is_typeddict(kind) or is_dataclass(kind):
        _table(kind, value, where)
    elif origin in (types.UnionType, typing.Union):
        _one_of(args, value, where)
    elif origin is typing.Literal:
        if value not in args:
            raise Wrong(f"{_place(where)} is {shown(value)}, none of {', '.join(map(repr, args))}")
    elif kind in (int, float):
        if problem := wrong(kind, value, ANY) if kind is int or not isinstance(value, float) else None:
            raise Wrong(f"{_place(where)} {problem}")
    elif origin in (dict, Mapping):
        for name, item in _is(dict, value, where).items():
            check(args[1], item, f"{where}.{name}" if where else str(name))
    elif origin in (list, tuple):
        _items(origin, args, _is(list, value, where), where)
    else:
        _is(kind, value, where)


def _annotated(args: tuple[Any, ...], value: Any, where: str) -> None:
    """A type, and what holds besides: a range, so many hexadecimal digits, or that it is of other types too."""
    check(args[0], value, where)
    for more in args[1:]:
        if isinstance(more, Range):
            if problem := wrong(args[0], value, more):
                raise Wrong(f"{_place(where)} {problem}")
        elif not isinstance(more, int):
            check(more, value, where)
        elif len(value) != more or set(value) - set("0123456789abcdef"):
            raise Wrong(f"{_place(where)} is no hash: {shown(value)}")


def _table(kind: Any, value: Any, where: str) -> None:
    hints, needed = _fields(kind)
    found = _is(dict, value, where)
    for name, inner in hints.items():
        if name in found:
            check(inner, found[name], f"{where}.{name}" if where else name)
        elif name in needed:
            raise Wrong(f"{f'{where}.' if where else ''}{name} is missing")


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a class's keys, and those that must be there; a dataclass's fields where it is one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        known = fields(kind)
        needed = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}
        return {f.name: hints[f.name] for f in known}, frozenset(needed)
    marks = {name: typing.get_origin(inner) for name, inner in hints.items()}  # NotRequired, Required, or anything else
    needed = {name for name, mark in marks.items() if mark is Required or (kind.__total__ and mark is not NotRequired)}
    bare = {name: typing.get_args(hints[name])[0] for name, mark in marks.items() if mark in (NotRequired, Required)}
    return hints | bare, frozenset(needed)


def _one_of(args: tuple[Any, ...], value: Any, where: str) -> None:
    problems = []
    for each in args:
        try:
            return check(each, value, where)
        except Wrong as problem:
            problems.append(problem)
    raise problems[0]


def _items(origin: type, args: tuple[Any, ...], value: list[Any], where: str) -> None:
    """`list[T]` and `tuple[T, ...]` have items of one type, `tuple[A, B]` has those two."""
    kinds = args if origin is tuple and args[-1] is not Ellipsis else (args[0],) * len(value)
    if len(kinds) != len(value):
        raise Wrong(f"{_place(where)} has {len(value)} items, not {len(kinds)}")
    for number, (inner, item) in enumerate(zip(kinds, value, strict=True)):
        check(inner, item, f"{where}[{number}]")


def _is(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names: Mapping[Any, str] = {dict: "a table", list: "a list", str: "text", bool: "true or false"}
        raise Wrong(f"{_place(where)} takes {names.get(kind, getattr(kind, '__name__', kind))}, not {shown(value)}")
    return value


def _place(where: str) -> str:
    return where or "it"
