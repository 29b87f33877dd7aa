"""Which rows the benchmarks' tables have, and that a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import student
from benchmarks.__main__ import VERBS
from benchmarks.growth import GrowthBenchmark, points
from benchmarks.harness import Ledger
from benchmarks.student import StudentBenchmark, groups, label
from benchmarks.student import run as time_student

from tsdfm.cli import read
from tsdfm.distil.settings import StudentSettings
from tsdfm.engine.learner import Learner
from tsdfm.errors import UserError

CPU = torch.device("cpu")


def test_the_student_star() -> None:
    found = {batch: [label(plan) for plan in plans] for batch, plans in groups(StudentBenchmark()).items()}
    around = {f"ts-dfm τ={tau} K={k}" for tau, k in ((0.2, 5), (0.02, 5), (0.4, 5), (0.2, 2), (0.2, 8))}
    assert set(found) == {8, 16, 32}
    assert set(found[8]) == {"fs-dfm", *around}
    assert found[8][:2] == ["fs-dfm", "ts-dfm τ=0.2 K=5"]
    assert found[16] == found[32] == ["fs-dfm", "ts-dfm τ=0.2 K=5"]
    full = groups(StudentBenchmark(grid="full"))
    assert [len(plans) for plans in full.values()] == [10, 10, 10]


def test_points_of_growth() -> None:
    found = points(GrowthBenchmark())
    assert len(found) == 1 + 3 + 3 + 3
    assert found[0].ks == (5, 1, 2, 3, 8)
    assert {p.rows * p.length for p in found if p.what == "length, same tokens"} == {8192}
    assert {p.rows for p in found if p.what == "length, same rows"} == {8}


def test_a_table_goes_on_where_it_stopped(tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    first = Ledger("a title", ("batch", "step"), CPU, place)
    first.add([{"batch": 8, "step": "a", "ms": 1.0}])
    again = Ledger("a title", ("batch", "step"), CPU, place)
    assert again.has((8, "a"))
    assert not again.has((8, "a"), (8, "b"))
    again.add([{"batch": 8, "step": "a", "ms": 2.0}, {"batch": 8, "step": "b", "ms": 3.0}])
    again.leave("batch 16")
    again.show()
    kept = json.loads((tmp_path / "results.json").read_text())["mine"]
    assert [row["ms"] for row in kept["rows"]] == [2.0, 3.0]
    assert kept["not measured"] == ["batch 16"]
    assert Ledger("another title", ("batch", "step"), CPU, place).rows == []


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"preset": "tiny", "vocab": 30, "length": 8, "batch": (2,), "tau": (0.2,), "k": (2,), "compile": False}
    plan = {"warm": 1, "repeats": 1, "device": "cpu", "out": tmp_path}
    time_student(StudentBenchmark(**sizes, **plan, limit=1.0))  # type: ignore[arg-type]
    assert "not measured for want of time: batch 2: fs-dfm, ts-dfm τ=0.2 K=2" in capsys.readouterr().out
    time_student(StudentBenchmark(**sizes, **plan))  # type: ignore[arg-type]
    rows = json.loads((tmp_path / "results.json").read_text())["student"]["rows"]
    assert [row["step"] for row in rows] == ["fs-dfm", "ts-dfm τ=0.2 K=2"]
    assert rows[1]["to fs-dfm"] == pytest.approx(rows[1]["ms"] / rows[0]["ms"])
    capsys.readouterr()
    time_student(StudentBenchmark(**sizes, **plan))  # type: ignore[arg-type]
    assert "warm after" not in capsys.readouterr().out  # nothing was measured twice


def test_switches_are_timed_by_learners_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[StudentSettings] = []

    def learner_of(settings: StudentBenchmark, plan: StudentSettings) -> Learner:
        plans.append(plan)
        return make(settings, plan)

    make = student.learner_of
    monkeypatch.setattr(student, "learner_of", learner_of)
    sizes = {"preset": "tiny", "vocab": 30, "length": 8, "batch": (2,), "tau": (0.2,), "k": (2,), "compile": False}
    plan = {"warm": 1, "repeats": 1, "device": "cpu", "out": tmp_path, "switch": ("record",)}
    time_student(StudentBenchmark(**sizes, **plan))  # type: ignore[arg-type]
    rows = json.loads((tmp_path / "results.json").read_text())["student"]["rows"]
    plain = ["fs-dfm", "ts-dfm τ=0.2 K=2"]
    assert [row["step"] for row in rows] == [*plain, *(f"{name}, record" for name in plain)]
    assert all(row["in a row"] > 0 and row["host ms"] > 0 for row in rows)
    assert [(hasattr(made, "policy"), made.record) for made in plans] == [
        (navigated, record) for record in (False, True) for navigated in (False, True)
    ]


def read_by(name: str, *words: str) -> Any:
    return read(name, VERBS[name], list(words))


def test_lists_of_names_are_parted_by_commas_or_flags() -> None:
    for words in (["--parts", "sampling,teacher"], ["--parts", "sampling", "--parts", "teacher"]):
        assert read_by("all", *words).parts == ("sampling", "teacher")
    found = read_by("all", "--tables", "head,draw", "--switch", "record")
    assert (found.tables, found.switch) == (("head", "draw"), ("record",))
    assert read_by("all").parts[:2] == ("check", "student")
    assert read_by("kernels", "--tables", "draw,losses", "--tables", "head").tables == ("draw", "losses", "head")
    assert read_by("sampling", "--models", "autoregressive,student").models == ("autoregressive", "student")
    assert read_by("student", "--switch", "record").switch == ("record",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["all", "--parts", "sampling,taecher"], "parts takes one of .*, not 'taecher'; did you mean 'teacher'"),
        (["kernels", "--tables", "drow"], "tables takes one of .*; did you mean 'draw'"),
        (["sampling", "--models", "student,studnet"], "models takes one of .*, not 'studnet'"),
        (["student", "--switch", "recorrd"], "switch takes one of record, not 'recorrd'; did you mean 'record'"),
    ],
)
def test_names_that_are_none_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_by(*words)
