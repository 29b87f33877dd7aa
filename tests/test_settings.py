"""Settings: from a recipe, from flags, and back; and what is said when something is wrong."""

from __future__ import annotations

import argparse
import json
import math
import sys
import typing
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tsdfm.cli import VERBS, load
from tsdfm.compass.network import CompassSpec
from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.engine.settings import LoopSettings
from tsdfm.errors import UserError
from tsdfm.judges import judge_from
from tsdfm.judges.settings import JudgeLoop, JudgeOptim, JudgeScoreSettings
from tsdfm.methods import method, names
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.causal import CausalSpec
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.pipeline.plan import ReportSettings as PlanReport
from tsdfm.recipes.recipe import find
from tsdfm.report.settings import MeasureSettings, PageSettings
from tsdfm.samples.defaults import SampleDefaults
from tsdfm.samples.settings import SampleSettings
from tsdfm.settings import (
    Name,
    Settings,
    add_flags,
    build,
    convert,
    flag_values,
    flat,
    hints_of,
    load_toml,
    merge,
    nearest,
    option,
    range_of,
    required,
    to_dict,
)
from tsdfm.tokens.settings import TokensSettings
from tsdfm.view.settings import ViewSettings


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = option(3, "how large")
    rate: float = option(0.5, "how fast")
    deep: bool = option(False, "whether deep")
    share: float = option(0.5, "how much", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class Item:
    label: str = required("its label")
    weight: float = option(1.0, "its weight")


@dataclass(frozen=True, kw_only=True)
class Outer:
    out: Path = required("where to")
    name: str = option("plain", "a name; 100% free")
    kind: Literal["soft", "hard"] = option("soft", "which kind")
    limit: int | None = option(None, "at most")
    home: Path | None = option(None, "a folder")
    times: tuple[float, ...] = option((), "a grid")
    kinds: tuple[Literal["soft", "hard"], ...] = option(("soft", "hard"), "which kinds")
    methods: tuple[Name, ...] = option(("a-1", "b.2"), "which methods")
    texts: tuple[str, ...] = option((), "any texts")
    maybe: tuple[int, ...] | None = option(None, "perhaps a list")
    parts: tuple[float, ...] = option((), "shares", above=0, below=1)
    items: tuple[Item, ...] = option((), "several")
    inner: Inner = option(Inner(), "the inner part")
    other: Inner = option(Inner(size=9), "another")


def test_defaults_and_required() -> None:
    made = build(Outer, {"out": "runs/x"})
    assert made == Outer(out=Path("runs/x"))
    assert made.other.size == 9
    with pytest.raises(UserError, match="missing setting 'out': where to"):
        build(Outer, {})
    with pytest.raises(UserError, match=r"missing setting 'label' in \[items\]: its label"):
        build(Outer, {"out": "x", "items": [{"weight": 2}]})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"nam": "x"}, "unknown setting 'nam'; did you mean 'name'?"),
        ({"inner": {"raet": 1}}, "unknown setting 'raet' in [inner]; did you mean 'rate'?"),
        ({"items": [{"label": "a", "wieght": 1}]}, "unknown setting 'wieght' in [items]; did you mean 'weight'?"),
        ({"inner": {"zzz": 1}}, "unknown setting 'zzz' in [inner]; known: size, rate, deep, share"),
        ({"inner": 3}, "inner takes a table of settings, not 3"),
        ({"kind": "sof"}, "kind takes one of soft, hard, not 'sof'; did you mean 'soft'?"),
        ({"kind": None}, "kind takes one of soft, hard"),
        ({"times": 3}, "times takes a list, not 3"),
        ({"times": "0,x"}, "times takes a number, not 'x'"),
        ({"kinds": "hard,sof"}, "kinds takes one of soft, hard, not 'sof'; did you mean 'soft'?"),
        ({"kinds": ["hard", 3]}, "kinds takes one of soft, hard, not 3"),
        ({"methods": ["a", True]}, "methods takes str, not True"),
        ({"name": True}, "name takes str, not True"),
        ({"name": ["x"]}, "name takes str"),
        ({"home": 3}, "home takes Path, not 3"),
        ({"out": None}, "out takes Path, not None"),
        ({"inner": {"size": 2.5}}, "inner.size takes a whole number, not 2.5"),
        ({"inner": {"size": "2.5"}}, "inner.size takes a whole number"),
        ({"inner": {"size": True}}, "inner.size takes a whole number, not True"),
        ({"inner": {"size": "inf"}}, "inner.size takes a whole number, not 'inf'"),
        ({"inner": {"size": math.nan}}, "inner.size takes a whole number, not nan"),
        ({"inner": {"size": None}}, "inner.size takes a whole number"),
        ({"inner": {"rate": "fast"}}, "inner.rate takes a number, not 'fast'"),
        ({"inner": {"rate": 10**400}}, "inner.rate takes a number"),
        ({"inner": {"rate": "nan"}}, "inner.rate must be a finite number, not nan"),
        ({"inner": {"rate": math.inf}}, "inner.rate must be a finite number, not inf"),
        ({"inner": {"size": 2**63}}, "inner.size must be a number of 64 bits"),
        ({"inner": {"size": "9" * 5000}}, "inner.size takes a whole number, not '999"),
        ({"inner": {"size": 16**5000}}, "inner.size must be a number of 64 bits, not a very large int"),
        ({"inner": {"share": 1.5}}, "inner.share must be from 0 to 1, not 1.5"),
        ({"inner": {"share": math.nan}}, "inner.share must be from 0 to 1, not nan"),
        ({"parts": [0.5, -1]}, "parts must be above 0 and below 1, not -1"),
        ({"inner": {"deep": "maybe"}}, "inner.deep takes true or false, not 'maybe'"),
        ({"inner": {"deep": 1}}, "inner.deep takes true or false, not 1"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Outer, {"out": "x", **values})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, "12", 12),
        (int, " 7 ", 7),
        (int, "-3", -3),
        (int, "1e3", 1000),
        (int, 1000.0, 1000),
        (int, "1_000", 1000),
        (int, 2**53 + 1, 2**53 + 1),  # a seed of 64 bits is not rounded
        (int, str(2**62 + 1), 2**62 + 1),
        (float, 3, 3.0),
        (float, "1e-5", 1e-5),
        (bool, "YES", True),
        (bool, "0", False),
        (bool, False, False),
        (str, 170, "170"),
        (Path, "a/b", Path("a/b")),
        (int | None, "none", None),
        (int | None, None, None),
        (int | None, "4", 4),
        (Path | None, "None", None),
        (tuple[float, ...], "0,0.5,1", (0.0, 0.5, 1.0)),
        (tuple[int, ...], [1, "2"], (1, 2)),
        (tuple[int, ...] | None, "3,4", (3, 4)),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_conversions(kind: Any, value: Any, wanted: Any) -> None:
    found = convert(kind, value, "x")
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_home_folder() -> None:
    assert convert(Path, "~/x", "x") == Path.home() / "x"
    assert convert(Path, "/a/~0", "x") == Path("/a/~0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("~0", "x: there is no home folder ~0; give the whole path of a file of that name"),
        ("~nobody-of-that-name/y", "x: there is no home folder ~nobody-of-that-name; give the whole path"),
        ("a\0b", "x cannot be 'a\\x00b' (embedded null byte)"),
        ("n" * 4000, "(File name too long)"),
        ("{loop}", "(Symlink loop from '{loop}')"),
    ],
)
def test_a_path_that_cannot_be_is_refused(text: str, said: str, tmp_path: Path) -> None:
    """Here, for every setting that is a path, every recipe that is named by one and every judge."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    text, said = text.replace("{loop}", str(loop)), said.replace("{loop}", str(loop))
    if said.startswith("(Symlink") and sys.version_info >= (3, 13):
        assert convert(Path, text, "x") == loop  # later versions of Python resolve it to itself
        return
    with pytest.raises(UserError) as caught:
        convert(Path, text, "x")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):
        find(text)
    with pytest.raises(UserError):
        judge_from(text)


whole = st.integers(-(2**63) + 1, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
inner = st.builds(Inner, size=whole, rate=finite, deep=st.booleans())
words = st.text(max_size=8).filter(lambda text: text.lower() != "none")
paths = st.text("abcde/._-", min_size=1, max_size=8).map(Path)
outer = st.builds(
    Outer,
    out=paths,
    name=words,
    kind=st.sampled_from(["soft", "hard"]),
    limit=st.none() | whole,
    home=st.none() | paths,
    times=st.lists(finite, max_size=4).map(tuple),
    kinds=st.lists(st.sampled_from(["soft", "hard"]), max_size=3).map(tuple),
    methods=st.lists(st.text("abc-.12", min_size=1), max_size=3).map(tuple),
    texts=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    maybe=st.none() | st.lists(whole, max_size=3).map(tuple),
    items=st.lists(st.builds(Item, label=words, weight=finite), max_size=3).map(tuple),
    inner=inner,
    other=inner,
)


@given(outer)
def test_round_trip(made: Outer) -> None:
    assert build(Outer, to_dict(made)) == made
    assert build(Outer, json.loads(json.dumps(to_dict(made)))) == made


@given(st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.none(), st.booleans(), st.lists(st.integers())))
@example("~0")
@example("\0")
def test_any_value_is_read_or_refused(value: Any) -> None:
    """Nothing but a UserError, whatever a recipe holds."""
    for kind in (int, float, bool, str, Path, int | None, tuple[int, ...], Literal["a"], Inner):
        try:
            found = convert(kind, value, "x")
        except UserError:
            continue
        if kind in (int, float, bool, str):
            assert type(found) is kind


@given(st.integers())
def test_whole_numbers_are_exact(number: int) -> None:
    assert convert(int, number, "x") == number
    assert convert(int, str(number), "x") == number


tables = st.recursive(
    st.integers(0, 3), lambda inside: st.dictionaries(st.sampled_from("abc"), inside, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


def leaves(table: dict[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    out: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        out.update(leaves(value, (*prefix, key)) if isinstance(value, dict) else {(*prefix, key): value})
    return out


@given(tables, tables)
def test_merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = json.dumps([base, over])
    found = leaves(merge(base, over))
    assert json.dumps([base, over]) == before  # neither is changed
    assert leaves(over).items() <= found.items()
    assert found.items() <= {**leaves(base), **leaves(over)}.items()
    assert merge(base, {}) == base
    assert merge(base, base) == base


@given(tables)
def test_flat(table: dict[str, Any]) -> None:
    assert flat(table) == {".".join(path): value for path, value in leaves(table).items()}


def test_nested_overrides() -> None:
    recipe = {"out": "runs/a", "inner": {"size": 5, "rate": 2}, "kind": "hard"}
    made = build(Outer, merge(recipe, {"inner": {"size": 6}, "out": "runs/b"}))
    assert made == Outer(out=Path("runs/b"), inner=Inner(size=6, rate=2.0), kind="hard")


def flags(cls: type, *given: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, cls)
    return flag_values(vars(parser.parse_args(given)), cls)


def test_flags() -> None:
    assert flags(Outer) == {}  # defaults belong to the class: a recipe below the flags stays
    given = [
        "--out",
        "x",
        "--inner.deep",
        "--inner.size=4",
        "--other.deep",
        "false",
        "--times",
        "0,1",
        "--limit",
        "none",
    ]
    plain = flags(Outer, *given)
    assert plain["inner"] == {"deep": "true", "size": "4"}
    assert build(Outer, plain) == Outer(
        out=Path("x"), inner=Inner(deep=True, size=4), other=Inner(deep=False), times=(0.0, 1.0)
    )


def test_flags_of_lists() -> None:
    """A list's flag may be repeated; numbers and names may also be parted by commas, texts and paths keep theirs."""
    assert build(Outer, {"out": "x", **flags(Outer, "--times", "0,0.5", "--times", "1")}).times == (0.0, 0.5, 1.0)
    both = flags(Outer, "--kinds", "hard,soft", "--kinds", "hard", "--methods", "ts-dfm, x", "--methods", "y")
    made = build(Outer, {"out": "x", **both})
    assert made.kinds == ("hard", "soft", "hard")
    assert made.methods == ("ts-dfm", "x", "y")
    assert build(Outer, {"out": "x", "methods": ["a", "b"], "kinds": "soft"}).methods == ("a", "b")
    assert build(Outer, {"out": "x", **flags(Outer, "--texts", "Hi, Mia", "--texts", "b")}).texts == ("Hi, Mia", "b")
    assert convert(tuple[Path, ...], ["a,b", "c"], "x") == (Path("a,b"), Path("c"))
    assert convert(tuple[str, ...], ["Hi, Mia", "Tom"], "x") == ("Hi, Mia", "Tom")
    assert convert(tuple[str, ...], "Hi, Mia", "x") == ("Hi, Mia",)


def test_help_shows_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Outer)
    text = " ".join(parser.format_help().split())
    for part in (
        "--out PATH where to (required)",
        "a name; 100% free (default plain)",
        "--kind {soft,hard}",
        "--limit N at most (default none)",
        "--times X,… a grid (default empty)",
        "--kinds {soft,hard},… which kinds (default soft,hard)",
        "--methods NAME,… which methods (default a-1,b.2)",
        "--texts TEXT any texts (default empty)",
        "--inner.deep [true|false] whether deep (default false)",
        "--inner.share X how much; from 0 to 1 (default 0.5)",
        "other: another",
    ):
        assert part in text
    assert "--items" not in text  # lists of tables are for recipes


def test_underscores_become_dashes() -> None:
    plain = flags(DFMSettings, "--time-power", "0.5", "--loop.eval-every", "7", "--optim.weight-decay", "0")
    assert plain == {"time_power": "0.5", "loop": {"eval_every": "7"}, "optim": {"weight_decay": "0"}}


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (DFMSettings, {"tokens": "a", "out": "b", "net": {"width": 64}, "loop": {"micro": 4}}),
        (TokensSettings, {"corpus": "a", "out": "b", "layout": "document"}),
        (CorpusSettings, {"out": "b", "sources": [{"name": "world", "limit": 3}, {"path": "x", "weight": 2}]}),
    ],
)
def test_the_real_settings_come_back_from_their_manifest(cls: type, given: dict[str, Any]) -> None:
    made = build(cls, given)
    assert build(cls, json.loads(json.dumps(to_dict(made)))) == made


def settings_classes() -> list[type]:
    """Every settings class: of each command, of each method, and those inside them."""
    found = [load(verb.settings) for verb in VERBS.values() if verb.settings] + [method(n).settings for n in names()]
    found += [VelocitySpec, CompassSpec, CausalSpec, SampleDefaults, PlanReport, SourceSettings, MeasureSettings]
    for cls in found:
        for kind in hints_of(cls).values():
            inside = [kind, *typing.get_args(kind)]
            found += [each for each in inside if is_dataclass(each) and each not in found]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("cls", settings_classes(), ids=lambda cls: cls.__name__)
def test_every_number_has_a_range(cls: type) -> None:
    """Give an option that is a number its ends: low, high, above or below; a seed `**SEED`."""
    assert issubclass(cls, Settings), "a settings class derives from `tsdfm.settings.Settings`"
    for name, kind in hints_of(cls).items():
        if {int, float} & {kind, *typing.get_args(kind)}:
            assert range_of(cls, name).bounded, f"{cls.__name__}.{name} says no range"


def test_ranges_hold_in_python_too_and_are_kept_by_classes_below() -> None:
    for wrong in ({"steps": 0}, {"steps": "8"}, {"batch": 2.5}, {"precision": "fp8"}, {"micro": 0}, {"seed": 2**63}):
        for cls in (LoopSettings, JudgeLoop):
            with pytest.raises(UserError, match=next(iter(wrong))):
                cls(**wrong)
    with pytest.raises(UserError, match="ema must be at least 0 and below 1, not 1"):
        JudgeOptim(ema=1)  # which has another default, and says nothing of the range
    with pytest.raises(UserError, match="lr must be a finite number"):
        JudgeOptim(lr=math.inf)
    assert LoopSettings(steps=np.int64(3)).steps == 3


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "train-00000.bin", "train.jsonl.gz", "card.md"])
def test_no_command_writes_over_a_part_of_an_artifact(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert build(SampleSettings, {"out": path}).out == path  # it is not there yet
    path.write_text("x")
    for cls, setting in (
        *((SampleSettings, "out"), (SampleSettings, "save_trajectory"), (ViewSettings, "out")),
        *((ViewSettings, "image"), (JudgeScoreSettings, "out"), (JudgeScoreSettings, "cache")),
        (PageSettings, "markdown"),
    ):
        needed = {"judge": "x", "texts": ["y"]} if cls is JudgeScoreSettings else {}
        needed |= {"folder": "x"} if cls is PageSettings else {}
        with pytest.raises(UserError, match=f"{setting} would write over .*part of an artifact"):
            build(cls, {**needed, setting: str(path)})
        with pytest.raises(UserError, match="is a folder"):
            build(cls, {**needed, setting: str(tmp_path)})
    assert build(SampleSettings, {"out": tmp_path / "texts.jsonl"}).out is not None
    assert path.read_text() == "x"


def test_settings_are_frozen() -> None:
    made = build(Outer, {"out": "x"})
    with pytest.raises(AttributeError):
        made.inner.size = 4  # type: ignore[misc]


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('out = "runs/é"\n[inner]\nsize = 7\n[[items]]\nlabel = "a"\n', encoding="utf-8")
    assert build(Outer, load_toml(path)) == Outer(out=Path("runs/é"), inner=Inner(size=7), items=(Item(label="a"),))
    path.write_bytes(b"out = \n")
    with pytest.raises(UserError, match="not valid TOML"):
        load_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not valid TOML"):
        load_toml(path)
    with pytest.raises(UserError, match="no recipe at"):
        load_toml(tmp_path / "none.toml")


def test_nearest() -> None:
    assert nearest("stps", ["steps", "seed"]) == "; did you mean 'steps'?"
    assert nearest("q", ["steps", "seed"]) == "; known: steps, seed"
