"""Recipes as stages: names, order, inheritance, seeds, and what is answered to a mistake."""

from pathlib import Path
from typing import Any

import pytest

from training import student_of
from tsdfm.errors import UserError
from tsdfm.pipeline.done import comparable
from tsdfm.pipeline.models import all_named, in_order
from tsdfm.pipeline.places import Places
from tsdfm.pipeline.plan import plan, seeded, sources_of
from tsdfm.pipeline.run import overrides
from tsdfm.recipes import load_recipe, shipped

OUT = Path("out")


def recipe(**more: Any) -> dict[str, Any]:
    return {"tokens": {}, "teacher": {}, "compass": {}, "student": {"share": 0.5}, **more}


def named(plain: dict[str, Any], source: str = "uniform") -> dict[str, Any]:
    return {n.name: n.given for n in all_named(plain, Places.of(plain, source, OUT))}


def test_names_stand_for_the_run_of_the_same_source() -> None:
    plain = recipe(
        compasses={"ratio": {"init_from": "compass", "ratio": {"proposer": "fs-dfm"}}},
        students={
            "ts": {"policy": "sequence", "init_from": "fs-dfm", "compass": "ratio"},
            "fs-dfm": {},
            "other": {"init_from": "elsewhere/run", "policy": "token"},
        },
    )
    found = named(plain, "mask")
    assert found["fs-dfm"]["init_from"] == OUT / "teacher-mask"
    assert found["ts"]["init_from"] == OUT / "fs-dfm-mask"
    assert found["ts"]["compass"] == OUT / "ratio-mask"
    assert found["ts"]["share"] == 0.5
    assert found["ratio"]["ratio"]["proposer"] == OUT / "fs-dfm-mask"
    assert found["other"]["init_from"] == "elsewhere/run"
    assert found["other"]["compass"] == OUT / "compass-mask"  # implied by the policy
    assert "compass" not in found["fs-dfm"]
    assert [n.name for n in in_order(all_named(plain, Places.of(plain, "mask", OUT)))] == [
        "compass",
        "fs-dfm",
        "ratio",
        "ts",
        "other",
    ]


def test_like_starts_from_another_students_settings_for_the_source() -> None:
    plain = recipe(
        students={
            "fs-dfm": {},
            "ts": {"policy": "sequence-to-token", "loop": {"steps": 7}},
            "ts-k": {"like": "ts", "navigate": {"k": 2}},
            "ts-k-tau": {"like": "ts-k", "navigate": {"tau": 0.4}},
        },
        source={"mask": {"students": {"ts": {"loop": {"steps": 3}}}}},
    )
    uniform, mask = named(plain)["ts-k-tau"], named(plain, "mask")["ts-k-tau"]
    assert uniform["navigate"] == {"k": 2, "tau": 0.4}
    assert (uniform["loop"]["steps"], mask["loop"]["steps"]) == (7, 3)
    assert uniform["name"] == "ts-k-tau"


@pytest.mark.parametrize(
    ("students", "said"),
    [
        ({"a": {"init_from": "b"}, "b": {"init_from": "a"}}, "wait for each other.*: a, b"),
        ({"a": {"like": "b"}, "b": {"like": "a"}}, "cannot be like"),
        ({"a": {"like": "zz"}, "ab": {}}, "cannot be like 'zz'"),
        ({"teacher": {}}, "call it something else"),
        ({"a/b": {}}, "call it something else"),
        ({"a": {"polcy": "blind"}}, r"\[students.a\]; did you mean 'policy'"),
        ({"a": {"level_weights": [1, 1]}}, "level_weights takes 11"),
    ],
)
def test_mistakes_in_students(students: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe(students=students), OUT)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"tables": ["polciy"]}, "unknown table 'polciy'.*'policy'"),
        ({"tables": "policy,mian"}, "unknown table 'mian'.*'main'"),
        ({"table": ["policy"]}, "did you mean 'tables'"),
        ({"trajectories": "x"}, "trajectories takes a whole number"),
        ({"trajectories": -1}, "number of steps, 0 for none"),
        ({"tables": ["policy"], "policy": {"step": 3}}, "did you mean 'steps'"),
    ],
)
def test_mistakes_in_the_report(report: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe(report=report), OUT)


def test_one_seed_for_all_stages_but_not_over_their_own() -> None:
    plain = seeded(recipe(seed=5, teacher={"loop": {"seed": 1}}, measure={}))
    assert plain["teacher"]["loop"]["seed"] == 1
    assert plain["compass"]["loop"]["seed"] == plain["student"]["loop"]["seed"] == plain["measure"]["seed"] == 5


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('extends = "two.toml"\n[teacher.loop]\nsteps = 3\n')
    (tmp_path / "two.toml").write_text('extends = "tiny_cpu"\n[teacher.loop]\nsteps = 4\nbatch = 5\n')
    found = load_recipe(str(tmp_path / "one.toml"))
    assert (found["teacher"]["loop"]["steps"], found["teacher"]["loop"]["batch"]) == (3, 5)
    assert found["tokens"] == load_recipe("tiny_cpu")["tokens"]
    other = load_recipe("ablate_k", extends="small_h200")
    assert other["tokens"] == load_recipe("small_h200")["tokens"]
    (tmp_path / "two.toml").write_text('extends = "one.toml"\n')
    with pytest.raises(UserError, match="circle"):
        load_recipe(str(tmp_path / "one.toml"))


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_plans(name: str) -> None:
    stages = [stage.name for stage in plan(load_recipe(name), OUT)]
    assert len(stages) == len(set(stages))
    assert any(stage.startswith("ts-dfm") for stage in stages)


@pytest.mark.parametrize("name", shipped())
def test_students_learn_by_the_papers_divergence(name: str) -> None:
    """But for those that say so in their name."""
    plain = load_recipe(name)
    for source in sources_of(plain):
        found = {n.name: n.given for n in all_named(plain, Places.of(plain, source, OUT)) if n.kind == "student"}
        for student, given in found.items():
            made = student_of({"tokens": OUT, "out": OUT, **given})
            forward = student.endswith("-forward")
            assert made.divergence == ("forward" if forward else "reverse"), student


def test_ablations_plan_on_other_models_too() -> None:
    for name in shipped():
        if name.startswith("ablate"):
            assert len(plan(load_recipe(name, extends="small_h200"), OUT)) > 10


def test_places_do_not_count_when_settings_are_compared() -> None:
    one = {"out": "a", "init_from": "b", "k": 1, "ratio": {"proposer": "c", "n": 3}}
    assert comparable(one) == {"k": 1, "ratio": {"n": 3}}


def test_what_needs_a_judge_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="report policy needs a judge"):
        plan(recipe(measure={"world": ""}, report={"tables": ["policy"]}), OUT)
    with pytest.raises(UserError, match="frontier needs a judge"):
        plan(recipe(measure={"world": "", "frontier": True}), OUT)
    stages = plan(recipe(judge={}, measure={"world": "", "frontier": True}, report={"tables": ["policy"]}), OUT)
    assert "judge" in [stage.name for stage in stages]


def test_a_seed_reaches_students_without_a_section_of_their_own() -> None:
    plain = {"tokens": {}, "teacher": {}, "students": {"fs-dfm": {}}, "seed": 4}
    assert named(seeded(plain))["fs-dfm"]["loop"]["seed"] == 4


def test_what_is_set_twice_is_a_list() -> None:
    assert overrides(("report.tables=main", "report.tables=policy")) == {"report": {"tables": ["main", "policy"]}}


def test_a_name_with_a_dot_stands_in_quotes_and_sources_are_a_list_anywhere() -> None:
    given = ('students."ts-tau-0.02".loop.steps=3', "students.fs-reverse.sources=uniform,mask")
    assert overrides(given) == {
        "students": {"ts-tau-0.02": {"loop": {"steps": "3"}}, "fs-reverse": {"sources": ["uniform", "mask"]}}
    }


def test_overrides_nest() -> None:
    pairs = ("sources=uniform", "students.ts-dfm.navigate.k=3", "students.ts-dfm.loop.steps=2")
    expected = {"ts-dfm": {"navigate": {"k": "3"}, "loop": {"steps": "2"}}}
    assert overrides(pairs) == {"sources": ["uniform"], "students": expected}


def test_a_section_may_be_for_one_source_and_what_is_like_it_too() -> None:
    plain = recipe(
        students={
            "fs-dfm": {},
            "only": {"sources": ["uniform"], "init_from": "fs-dfm"},
            "again": {"like": "only"},
            "both": {"like": "only", "sources": ["uniform", "mask"]},
        }
    )
    assert list(named(plain)) == ["compass", "fs-dfm", "only", "again", "both"]
    assert list(named(plain, "mask")) == ["compass", "fs-dfm", "both"]
    assert "sources" not in named(plain)["only"]
    plain["students"]["both"]["init_from"] = "only"
    with pytest.raises(UserError, match="does not have: both"):
        in_order(all_named(plain, Places.of(plain, "mask", OUT)))
    plain["students"]["only"]["sources"] = "masks"
    with pytest.raises(UserError, match=r"unknown source of only 'masks'.*'mask'"):
        named(plain)
