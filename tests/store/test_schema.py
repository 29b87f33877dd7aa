"""The check of JSON against types: what passes, what is said of the rest, and that nothing else comes out of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.errors import UserError
from tsdfm.ranges import Range
from tsdfm.settings import DEEPEST, load_toml
from tsdfm.store.files import parse_json, read_any_json, read_json
from tsdfm.store.schema import Count, Sha256, Wrong, check, read_record


class Inner(TypedDict):
    rows: Count
    share: NotRequired[Annotated[float, Range(low=0, high=1)]]


@dataclass
class Record:
    name: str
    seconds: float = 0.0


class File(TypedDict):
    kind: Literal["a", "b"]
    hash: NotRequired[Sha256]
    parts: NotRequired[list[Inner]]
    pairs: NotRequired[list[tuple[int, str]]]
    by_name: NotRequired[dict[str, int | None]]
    record: NotRequired[Record]
    flag: NotRequired[bool]
    any: NotRequired[Any]


GOOD = {
    "kind": "a",
    "hash": "0" * 64,
    "parts": [{"rows": 3, "share": 0.5, "more": "is let through"}],
    "pairs": [[1, "x"]],
    "by_name": {"x": None, "y": 2},
    "record": {"name": "r", "seconds": 1},
    "flag": True,
    "any": {"deep": [1]},
    "new in a later version": 1,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "c"}, "kind is 'c', none of 'a', 'b'"),
        ({"kind": []}, "kind is \\[\\], none of"),
        ({"hash": "0" * 63}, "hash is no hash"),
        ({"hash": "z" * 64}, "hash is no hash"),
        ({"hash": 3}, "hash takes text, not 3"),
        ({"parts": {}}, "parts takes a list, not {}"),
        ({"parts": [{"rows": 3}, {}]}, r"parts\[1\].rows is missing"),
        ({"parts": [{"rows": -1}]}, r"parts\[0\].rows must be from 0 to 2\^48, not -1"),
        ({"parts": [{"rows": True}]}, r"rows takes a whole number, not True"),
        ({"parts": [{"rows": 3, "share": 1.5}]}, r"share must be from 0 to 1"),
        ({"pairs": [[1]]}, r"pairs\[0\] has 1 items, not 2"),
        ({"pairs": [["x", 1]]}, r"pairs\[0\]\[0\] takes a whole number"),
        ({"by_name": {"x": "y"}}, r"by_name.x takes a whole number, not 'y'"),
        ({"record": {"seconds": 1}}, "record.name is missing"),
        ({"record": {"name": "x", "seconds": "y"}}, "record.seconds takes a number"),
        ({"flag": 1}, "flag takes true or false, not 1"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    check(File, GOOD)
    with pytest.raises(Wrong, match=said):
        check(File, GOOD | change)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(UserError, match=rf"file.json is damaged \(.*{said}.*\): try again") as caught:
        read_record(path, File, "try again")
    assert "\n" not in str(caught.value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("0" * 64),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "rows", "name"]), inside),
    max_leaves=10,
)


@given(values)
def test_anything_is_right_or_wrong(value: Any) -> None:
    try:
        check(File, value)
    except Wrong:
        pass
    else:
        assert value["kind"] in ("a", "b")


@given(st.binary(max_size=40) | values.map(json.dumps).map(str.encode))
def test_any_bytes_are_json_or_damaged(data: bytes) -> None:
    try:
        text = data.decode()
        assert json.dumps(parse_json(text)) == json.dumps(json.loads(text))
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deep"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "deep"),
        ("[1" + "," + "9" * 5000 + "]", "thousands of digits"),
        ("", "Expecting value"),
        ('{"a": 1', "delimiter"),
    ],
)
def test_json_that_is_none(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"x.json is damaged .*{said}"):
        read_any_json(path)


def test_what_is_no_file_of_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * DEEPEST + "]" * DEEPEST)
    read_any_json(tmp_path / "x.json")
    with pytest.raises(UserError, match="not a JSON object"):
        read_json(tmp_path / "x.json")
    with pytest.raises(UserError, match="no file at"):
        read_json(tmp_path / "y.json")
    with pytest.raises(UserError, match="Is a directory"):
        read_json(tmp_path)
    (tmp_path / "x.json").write_bytes(b'"\xff"')
    with pytest.raises(UserError, match=r"is damaged .*utf-8"):
        read_any_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a" + ".a" * 20_000 + " = 1",
        "a = " + "9" * 5000,
        "a = '" + "a" * 100_000,
    ],
)
def test_toml_that_cannot_be_used(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match="is not valid TOML"):
        load_toml(tmp_path / "x.toml")
