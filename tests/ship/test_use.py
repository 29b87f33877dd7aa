"""Models that a recipe uses instead of training them: what is planned, measured, told and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.pipeline.plan import Plan, make_plan
from tsdfm.recipes import Recipe

OUT = Path("out")


def recipe(**more: Any) -> dict[str, Any]:
    return {"tokens": {}, "teacher": {}, "compass": {}, "student": {"share": 0.5}, **more}


def plan(plain: dict[str, Any]) -> Plan:
    return make_plan(Recipe([plain]), OUT)


def test_what_is_used_is_not_trained(shipping: Path) -> None:
    plain = recipe(
        compasses={"longer": {"init_from": "compass"}},
        students={
            "fs-dfm": {"sources": ["uniform"]},
            "fs-more": {"like": "fs-dfm"},
            "ts": {"policy": "sequence", "init_from": "fs-dfm", "sources": ["uniform"]},
            "ts-teacher": {"policy": "sequence", "init_from": "teacher", "compass": "longer"},
        },
        source={
            "uniform": {
                "teacher": {"use": str(shipping / "teacher")},
                "compass": {"use": str(shipping / "int8")},
                "students": {"fs-dfm": {"use": str(shipping / "student")}},
            }
        },
    )
    made = plan({**plain, "sources": ["uniform"]})
    found = {model.name: model.settings for model in made.models}
    assert found["fs-more"].init_from == shipping / "teacher"  # what it is like is used; it is trained
    assert (found["ts"].init_from, found["ts"].compass) == (shipping / "student", shipping / "int8")
    assert found["longer"].init_from == shipping / "int8"
    assert found["ts-teacher"].compass == OUT / "longer-uniform"
    after = {model.key: model.needs for model in made.training()}
    assert set(after) == {"longer-uniform", "fs-more-uniform", "ts-uniform", "ts-teacher-uniform"}
    assert after["ts-uniform"] == after["longer-uniform"] == frozenset()
    assert after["ts-teacher-uniform"] == {"longer-uniform"}
    assert [(model.name, model.path) for model in made.models if not model.trained] == [
        (name, shipping / place) for name, place in (("teacher", "teacher"), ("compass", "int8"), ("fs-dfm", "student"))
    ]
    assert {"teacher-mask", "compass-mask"} <= {m.key for m in plan({**plain, "sources": ["mask"]}).training()}


def test_what_is_used_is_measured_with_the_others(shipping: Path) -> None:
    used = str(shipping / "int8" / "teacher")
    plain = recipe(students={"fs-dfm": {}}, source={"uniform": {"teacher": {"use": used}}})
    assert plan(plain).writers() == [Path(used), OUT / "fs-dfm-uniform"]


def test_what_is_for_one_source_is_used_for_it_alone(shipping: Path) -> None:
    plain = recipe(students={"fs-dfm": {"use": str(shipping / "student"), "sources": ["uniform"]}})
    plain["sources"] = ["uniform", "mask"]
    assert [model.key for model in plan(plain).models if not model.trained] == ["fs-dfm-uniform"]


def test_a_used_compass_is_told_of_if_it_was_validated(shipping: Path, tmp_path: Path) -> None:
    def told(used: Path) -> tuple[list[Path], list[str]]:
        given = {"uniform": {"compass": {"use": str(used)}}}
        made = plan(recipe(source=given, report={"tables": ["compass"], "page": False}))
        return list(made.examined().values()), [table.name for table in made.tables]

    assert told(shipping / "int8") == told(shipping / "compass") == ([], [])
    examined_there = tmp_path / "examined"
    examined_there.mkdir()
    for part in (shipping / "compass").iterdir():
        (examined_there / part.name).symlink_to(part)
    (examined_there / "validation.json").write_text("{}")
    assert told(examined_there) == ([examined_there], ["compass"])
    assert plan({**recipe(), "sources": ["mask"]}).examined() == {"mask": OUT / "compass-mask"}


@pytest.mark.parametrize(
    ("section", "use", "said"),
    [
        ("teacher", "no/such", "teacher: use says no/such, and there is no such run"),
        ("teacher", "", "teacher: use takes the path of a run"),
        ("teacher", 3, "teacher: use takes the path of a run, a checkpoint or a bundle, not 3"),
        ("teacher", "HOME", "teacher: use says .*: "),  # a folder of runs
        ("teacher", "HOME/compass", "which is no teacher"),
        ("teacher", "HOME/student", "which is no teacher"),
        ("teacher", "HOME/teacher-mask", "of the mask source, and this is uniform"),
        ("compass", "HOME/teacher", "which is no compass"),
        ("student", "HOME/student", r"say `use` in \[students.NAME\]"),
        ("students", "HOME/teacher", "fs-dfm: use says .* which is no student"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(section: str, use: Any, said: str, shipping: Path) -> None:
    given = {"use": use.replace("HOME", str(shipping)) if isinstance(use, str) else use}
    plain = recipe(source={"uniform": {section: {"fs-dfm": given} if section == "students" else given}})
    plain.setdefault("students", {"fs-dfm": {}})
    with pytest.raises(UserError, match=said):
        plan(plain)


def test_another_tokenizer_is_refused_before_anything_is_trained(
    shipping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(
        f"""
        [corpus]
        name = "world:small"
        limit = 60
        [tokens]
        tokenizer = "bpe"
        vocab_size = 300
        length = 36
        [teacher]
        use = "{shipping / "teacher"}"
        [students.fs-dfm]
        """
    )
    assert main(["pipeline", "r.toml", "--out", "o"]) == 2
    assert "teacher has another tokenizer than o/tokens" in capsys.readouterr().err
    assert sorted(path.name for path in Path("o").iterdir()) == ["corpus", "tokens"]
    assert main(["pipeline", "r.toml", "--out", "o", "--only", "teacher-uniform"]) == 2
    assert "teacher-uniform is not trained: the recipe uses" in capsys.readouterr().err
