"""Recipes as typed plans: names, order, inheritance, seeds, flags, and what is answered to a mistake."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tsdfm.compass.settings import CompassSettings
from tsdfm.errors import UserError
from tsdfm.pipeline.plan import Model, Plan, make_plan, placed
from tsdfm.pipeline.settings import PipelineSettings
from tsdfm.pipeline.stages import check_inputs
from tsdfm.recipes import Recipe, read_recipe, shipped
from tsdfm.recipes.recipe import overrides
from tsdfm.settings import ModelPath, comparable, path_settings
from tsdfm.teacher.settings import TeacherSettings

OUT = Path("out")


def recipe(**more: Any) -> dict[str, Any]:
    return {"tokens": {}, "teacher": {}, "compass": {}, "student": {"share": 0.5}, **more}


def plan(plain: dict[str, Any], *flags: str) -> Plan:
    return make_plan(Recipe([plain], overrides(flags)), OUT)


def models(plain: dict[str, Any], source: str = "uniform", *flags: str) -> dict[str, Model]:
    found = make_plan(Recipe([{**plain, "sources": [source]}], overrides(flags)), OUT)
    return {model.name: model for model in found.models}


def settings(plain: dict[str, Any], source: str = "uniform", *flags: str) -> dict[str, Any]:
    return {name: model.settings for name, model in models(plain, source, *flags).items()}


OLD = recipe(
    compasses={"ratio": {"objective": "ratio", "init_from": "compass", "ratio": {"proposer": "fs-dfm"}}},
    students={
        "ts": {"policy": "sequence", "init_from": "fs-dfm", "compass": "ratio"},
        "fs-dfm": {},
        "other": {"init_from": "elsewhere/run", "policy": "token"},
    },
)
NEW = {
    "tokens": {},
    "student": {"share": 0.5},
    "models": {
        "teacher": {"method": "dfm"},
        "compass": {"method": "compass"},
        "ratio": {
            "like": "compass",
            "objective": "ratio",
            "init_from": "compass",
            "ratio": {"proposer": "fs-dfm"},
        },
        "ts": {"method": "ts-dfm", "policy": "sequence", "init_from": "fs-dfm", "compass": "ratio"},
        "fs-dfm": {"method": "fs-dfm"},
        "other": {"method": "ts-dfm", "policy": "token", "init_from": "elsewhere/run"},
    },
}


@pytest.mark.parametrize("plain", [OLD, NEW], ids=["sections", "models"])
def test_names_stand_for_the_run_of_the_same_source(plain: dict[str, Any]) -> None:
    found = settings(plain, "mask")
    assert found["fs-dfm"].init_from == OUT / "teacher-mask"
    assert found["ts"].init_from == OUT / "fs-dfm-mask"
    assert found["ts"].compass == OUT / "ratio-mask"
    assert found["ts"].share == 0.5
    assert found["ratio"].ratio.proposer == OUT / "fs-dfm-mask"
    assert found["other"].init_from == Path("elsewhere/run")
    assert found["other"].compass == OUT / "compass-mask"  # the method needs one
    assert not hasattr(found["fs-dfm"], "compass")
    assert found["teacher"].source == "mask"
    ordered = [model.name for model in plan({**plain, "sources": ["mask"]}).training()]
    assert ordered == ["teacher", "compass", "fs-dfm", "ratio", "ts", "other"]


def test_both_forms_of_a_recipe_are_the_same_plan() -> None:
    assert models(OLD) == models(NEW)
    assert [model.method for model in models(OLD).values()] == [
        "dfm",
        "compass",
        "compass",
        "ts-dfm",
        "fs-dfm",
        "ts-dfm",
    ]


def test_a_file_of_one_form_extends_one_of_the_other() -> None:
    """What is said of a model is laid over what the other file says of it, whatever the section."""
    over = {"student": {"loop": {"steps": 9}}, "students": {"k": {"like": "fs-dfm", "policy": "token"}}}
    found = {m.name: m for m in make_plan(Recipe([NEW, over]), OUT).models}
    assert {found[name].settings.loop.steps for name in ("ts", "fs-dfm", "k")} == {9}
    assert (found["k"].method, found["fs-dfm"].method) == ("ts-dfm", "fs-dfm")
    over = {"models": {"k": {"like": "ts", "loop": {"steps": 9}}, "ts": {"share": 0.25}}}
    found = {m.name: m for m in make_plan(Recipe([OLD, over]), OUT).models}
    assert (found["k"].method, found["k"].settings.policy, found["k"].settings.loop.steps) == ("ts-dfm", "sequence", 9)
    assert found["k"].settings.share == found["ts"].settings.share == 0.25


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
    uniform, mask = settings(plain)["ts-k-tau"], settings(plain, "mask")["ts-k-tau"]
    assert (uniform.navigate.k, uniform.navigate.tau) == (2, 0.4)
    assert (uniform.loop.steps, mask.loop.steps) == (7, 3)
    assert uniform.name == "ts-k-tau"


@pytest.mark.parametrize(
    ("students", "said"),
    [
        ({"a": {"init_from": "b"}, "b": {"init_from": "a"}}, "wait for each other.*: a, b"),
        ({"a": {"like": "b"}, "b": {"like": "a"}}, "cannot be like"),
        ({"a": {"like": "zz"}, "ab": {}}, "cannot be like 'zz'"),
        ({"teacher": {}}, "call it something else"),
        ({"a/b": {}}, "call it something else"),
        ({"a": {"polcy": "blind"}}, r"unknown setting 'polcy' in \[students.a\]"),
        ({"a": {"policy": "token", "navigat": {}}}, r"\[students.a\]; did you mean 'navigate'"),
        ({"a": {"level_weights": [1, 1]}}, "level_weights takes 11"),
    ],
)
def test_mistakes_in_students(students: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe(students=students))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": {}}, r"\[models.a\] says no method"),
        ({"a": {"method": "fs-dmf"}}, "unknown method 'fs-dmf'.*'fs-dfm'"),
        ({"a": {"method": "fs-dfm", "looop": {}}}, r"\[models.a\]; did you mean 'loop'"),
        ({"a": {"like": "teacher", "sources": ["msk"]}}, "unknown source of a 'msk'.*'mask'"),
    ],
)
def test_mistakes_in_models(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe(models=given))
    with pytest.raises(UserError, match="no model 'b'"):
        plan(recipe(source={"mask": {"models": {"b": {"method": "dfm"}}}}))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"tables": ["polciy"]}, "unknown table 'polciy'.*'policy'"),
        ({"tables": "policy,mian"}, "unknown table 'mian'.*'main'"),
        ({"table": ["policy"]}, "did you mean 'tables'"),
        ({"trajectories": "x"}, "trajectories takes a whole number"),
        ({"trajectories": -1}, "report.trajectories must be from 0 to 2\\^16, not -1"),
        ({"tables": ["policy"], "policy": {"step": 3}}, "did you mean 'steps'"),
    ],
)
def test_mistakes_in_the_report(report: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe(report=report))


def test_one_seed_for_all_stages_but_not_over_their_own() -> None:
    made = plan(recipe(seed=5, teacher={"loop": {"seed": 1}}, students={"fs": {}}, measure={}, judge={}))
    assert [model.settings.loop.seed for model in made.models] == [1, 5, 5]
    assert made.measure is not None
    assert made.judge is not None
    assert made.measure.seed == made.judge.loop.seed == made.seed == 5


def test_a_seed_reaches_students_without_a_section_of_their_own() -> None:
    plain = {"tokens": {}, "teacher": {}, "students": {"fs-dfm": {}}, "seed": 4}
    assert settings(plain)["fs-dfm"].loop.seed == 4


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('extends = "two.toml"\n[teacher.loop]\nsteps = 3\n')
    (tmp_path / "two.toml").write_text('extends = "tiny_cpu"\n[models.teacher.loop]\nsteps = 4\nbatch = 5\n')
    found = read_recipe(str(tmp_path / "one.toml"))
    loop = make_plan(found, OUT).models[0].settings.loop
    assert (loop.steps, loop.batch) == (3, 5)
    assert found.section("tokens") == read_recipe("tiny_cpu").section("tokens")
    other = read_recipe("ablate_k", ("extends=small_h200",))
    assert other.section("tokens") == read_recipe("small_h200").section("tokens")
    (tmp_path / "two.toml").write_text('extends = "one.toml"\n')
    with pytest.raises(UserError, match="circle"):
        read_recipe(str(tmp_path / "one.toml"))


def test_a_stage_of_the_recipe_below_may_be_left_out() -> None:
    below = recipe(judge={"loop": {"steps": 3}})
    assert plan(below).judge is not None
    assert make_plan(Recipe([below, {"judge": False}]), OUT).judge is None
    assert make_plan(Recipe([below, {"judge": False}, {"judge": {}}]), OUT).judge is not None


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_plans(name: str) -> None:
    made = make_plan(read_recipe(name), OUT)
    keys = [model.key for model in made.training()]
    assert len(keys) == len(set(keys)) > 3
    assert any(key.startswith("ts-dfm") for key in keys)


@pytest.mark.parametrize("name", shipped())
def test_students_learn_by_the_papers_divergence(name: str) -> None:
    """But for those that say so in their name."""
    for model in make_plan(read_recipe(name), OUT).training():
        if hasattr(model.settings, "divergence"):
            forward = model.name.endswith("-forward")
            assert model.settings.divergence == ("forward" if forward else "reverse"), model.name


def test_a_flag_names_another_text() -> None:
    for flag in ("corpus.path=mine", "corpus.name=world:small"):
        corpus = make_plan(read_recipe("distil_mdlm", [flag, "corpus.limit=10"]), OUT).corpus
        assert corpus is not None
        assert (corpus.path, corpus.name) == ((Path("mine"), None) if "path" in flag else (None, "world:small"))
        corpus = make_plan(read_recipe("reference", [flag]), OUT).corpus
        assert corpus is not None
        assert corpus.sources == ()


def test_ablations_plan_on_other_models_too() -> None:
    for name in shipped():
        if name.startswith("ablate"):
            assert len(make_plan(read_recipe(name, ("extends=small_h200",)), OUT).models) > 7


def test_places_do_not_count_when_settings_are_compared() -> None:
    one = {"out": "a", "init_from": "b", "gamma": 1, "ratio": {"proposer": "c", "n": 3}, "resume": True}
    assert comparable(one, CompassSettings) == {"gamma": 1, "ratio.n": 3}


def test_a_setting_of_a_model_is_known_by_its_type() -> None:
    """A method's own word for a model it reads needs to stand in no list."""

    @dataclass(frozen=True, kw_only=True)
    class Own(TeacherSettings):
        critics: tuple[ModelPath, ...] = ()
        guide: ModelPath | None = None
        cache: Path | None = None

    assert path_settings(Own, models=True) == {"critics", "guide", "init_from"}
    assert path_settings(Own) == {"critics", "guide", "init_from", "cache", "out", "tokens"}
    given = {"guide": "teacher", "critics": "x", "net": {"guide": "none"}}
    needs = set[str]()
    assert placed(given, path_settings(Own, models=True), {"teacher": OUT}, needs)["guide"] == OUT
    assert needs == {"teacher"}


READS = {
    "small_h200": "has no text of its own: give .* corpus.path=FOLDER",
    "gsm8k_1b3": "says runs/dfm-1b3, and there is nothing",
    "gsm8k_cpu": "data/storyteller is not on this machine",
    "gsm8k_small": "says runs/text/tokens, and there is nothing",
    "stories_cpu": "data/storyteller is not on this machine",
    "stories_h200": "data/storyteller is not on this machine",
}


@pytest.mark.parametrize("name", shipped())
def test_what_a_recipe_reads_from_elsewhere_is_looked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe finds all that it reads, or says what is missing."""
    monkeypatch.chdir(tmp_path)
    made = make_plan(read_recipe(name), OUT)
    with pytest.raises(UserError, match=READS[name]) if name in READS else nullcontext():
        check_inputs(made)


def test_a_path_of_a_setting_that_shares_its_word_with_a_number_is_looked_for(tmp_path: Path) -> None:
    gone = make_plan(read_recipe("neighbours_cpu", [f"models.idlm.teacher={tmp_path / 'gone'}"]), tmp_path / "out")
    with pytest.raises(UserError, match=r"idlm: teacher says .*gone, and there is nothing"):
        check_inputs(gone)


def test_a_file_of_problems_is_looked_into_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"frage": "1 and 1?", "answer": "2"}\n')
    answers = [f"report.answers.file={tmp_path / 'test.jsonl'}"]
    with pytest.raises(UserError, match="line 1 has no field 'question'; known: frage, answer"):
        check_inputs(make_plan(read_recipe("sums_cpu", answers), tmp_path / "out"))
    made = make_plan(read_recipe("sums_cpu", [*answers, "report.answers.prompt=frage"]), tmp_path / "out")
    check_inputs(made)
    (tmp_path / "test.jsonl").write_text('{"frage": "1 and 1?", "answer": "2"}\n{"frage": "Why?", "answer": "So."}\n')
    with pytest.raises(UserError, match="has no number as the answer to 'Why"):
        check_inputs(made)


def test_a_table_of_the_report_may_have_runs_by_other_jumps() -> None:
    given = {"tables": ["neighbours"], "neighbours": {"also": ["mdlm@remdm-cap:0.1"], "steps": [8]}}
    (table,) = plan(recipe(measure={"world": "small"}, report=given)).tables
    assert (table.settings.runs[0], table.settings.also, table.settings.steps) == (OUT, ("mdlm@remdm-cap:0.1",), (8,))


def test_the_world_that_judges_is_that_of_the_corpus() -> None:
    for corpus, world in (({"name": "world:full"}, "full"), ({"path": "text.txt"}, ""), (None, "")):
        made = plan(recipe(measure={}, **({} if corpus is None else {"corpus": corpus})))
        assert made.measure is not None
        assert made.measure.world == world


def test_a_recipe_without_a_source_is_refused() -> None:
    with pytest.raises(UserError, match="sources is empty"):
        plan(recipe(sources=[]))


def test_what_needs_a_judge_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="report policy needs a judge"):
        plan(recipe(measure={"world": ""}, report={"tables": ["policy"]}))
    with pytest.raises(UserError, match="frontier needs a judge"):
        plan(recipe(measure={"world": "", "frontier": True}))
    made = plan(recipe(judge={}, measure={"world": "", "frontier": True}, report={"tables": ["policy"]}))
    assert made.judge is not None


def test_what_is_set_twice_is_a_list() -> None:
    assert overrides(("report.tables=main", "report.tables=policy")) == {"report": {"tables": ["main", "policy"]}}


def test_a_name_with_a_dot_stands_in_quotes_and_sources_are_a_list_anywhere() -> None:
    given = ('students."ts-tau-0.02".loop.steps=3', "students.fs-reverse.sources=uniform,mask")
    assert overrides(given) == {
        "students": {"ts-tau-0.02": {"loop": {"steps": "3"}}, "fs-reverse": {"sources": ["uniform", "mask"]}}
    }


def test_every_recipe_has_a_folder_of_its_own() -> None:
    assert PipelineSettings(recipe="sums_cpu").folder == Path("runs/sums_cpu")
    assert PipelineSettings(recipe="mine/stories.toml").folder == Path("runs/stories")
    assert PipelineSettings(recipe="sums_cpu", out=OUT).folder == OUT


def test_overrides_nest() -> None:
    pairs = ("sources=uniform", "students.ts-dfm.navigate.k=3", "students.ts-dfm.loop.steps=2")
    expected = {"ts-dfm": {"navigate": {"k": "3"}, "loop": {"steps": "2"}}}
    assert overrides(pairs) == {"sources": ["uniform"], "students": expected}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[4, 8]", [4, 8]),
        ('["uniform"]', ["uniform"]),
        ('"quoted, text"', "quoted, text"),
        ("{ width = 8 }", {"width": 8}),
        ("4,8", "4,8"),
        ("1e3", "1e3"),
        ("true", "true"),
        ("2024-01-01", "2024-01-01"),  # a folder, not a date
        ("my-texts", "my-texts"),
        ("a = b", "a = b"),
        ("[half", "[half"),
        ("", ""),
    ],
)
def test_a_flag_is_toml_where_that_says_more_than_text(text: str, value: Any) -> None:
    assert overrides((f"a.b={text}",)) == {"a": {"b": value}}


def test_lists_of_flags_are_read_either_way() -> None:
    for flags in (("measure.steps=[4, 8]", 'sources=["mask"]'), ("measure.steps=4,8", "sources=mask")):
        made = make_plan(read_recipe("tiny_cpu", flags), OUT)
        assert made.measure is not None
        assert (made.measure.steps, made.sources) == ((4, 8), ("mask",))


NARROW = recipe(
    students={"fs": {}, "ts": {"policy": "token", "loop": {"steps": 7}}, "ts-k": {"like": "ts", "loop": {"steps": 8}}},
    compasses={"more": {"loop": {"steps": 6}}},
    source={"mask": {"teacher": {"loop": {"steps": 5}}, "student": {"loop": {"steps": 4}}}},
    sources=["uniform", "mask"],
)


def steps(plain: dict[str, Any], *flags: str) -> dict[str, int]:
    return {model.key: model.settings.loop.steps for model in plan(plain, *flags).models}


def test_a_flag_wins_everywhere_and_a_narrower_one_over_it() -> None:
    found = steps(NARROW, "student.loop.steps=20", "teacher.loop.steps=60", "compass.loop.steps=30")
    for source in ("uniform", "mask"):
        assert [found[f"{name}-{source}"] for name in ("fs", "ts", "ts-k")] == [20, 20, 20]
        assert [found[f"{name}-{source}"] for name in ("teacher", "compass", "more")] == [60, 30, 30]
    found = steps(NARROW, "student.loop.steps=20", "models.ts.loop.steps=3", "source.mask.students.ts.loop.steps=2")
    assert (found["ts-uniform"], found["ts-mask"], found["fs-mask"]) == (3, 2, 20)
    found = steps(NARROW, "source.mask.student.loop.steps=9")
    assert (found["ts-k-uniform"], found["ts-k-mask"]) == (8, 9)
    tiny = {m.key: m.settings for m in make_plan(read_recipe("tiny_cpu", ("student.loop.steps=20",)), OUT).models}
    assert {tiny[f"{n}-{s}"].loop.steps for n in ("fs-dfm", "control", "ts-dfm") for s in ("uniform", "mask")} == {20}


def test_a_flag_on_a_kind_reaches_those_that_have_the_setting() -> None:
    found = settings(NARROW, "uniform", "student.navigate.k=3", "student.probe_every=9", "seed=6")
    assert (found["ts"].navigate.k, found["ts-k"].probe_every) == (3, 9)
    assert {each.loop.seed for each in found.values()} == {6}


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("students.tz.loop.steps=3", "no model 'tz'"),
        ("models.tts.loop.steps=3", "no model 'tts'.*'ts'"),
        ("source.mask.teacher.loop.steps=3", "source.mask.teacher reaches nothing that the recipe trains"),
        ("report.policy.steps=3", "report.policy reaches nothing"),
        ("student.polcy=token", r"unknown setting of \[student\] 'polcy'.*'policy'"),
        ("student.loop.stepps=3", "did you mean 'steps'"),
    ],
)
def test_a_flag_that_reaches_nothing_is_refused(flag: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan({**NARROW, "sources": ["uniform"], "report": {}}, flag)
    for flag, said in (
        ("student.navigate.k=3", "student.navigate reaches nothing"),
        ("validate.rows=3", "validate reaches nothing"),
    ):
        with pytest.raises(UserError, match=said):
            plan({"tokens": {}, "teacher": {}, "students": {"fs": {}}}, flag)


def test_a_model_may_be_made_by_flags() -> None:
    found = settings(NARROW, "uniform", "models.mine.like=ts", "models.mine.navigate.k=2")
    assert (found["mine"].navigate.k, found["mine"].loop.steps) == (2, 7)


def test_a_section_may_be_for_one_source_and_what_is_like_it_too() -> None:
    plain = recipe(
        students={
            "fs-dfm": {},
            "only": {"sources": ["uniform"], "init_from": "fs-dfm"},
            "again": {"like": "only"},
            "both": {"like": "only", "sources": ["uniform", "mask"]},
        }
    )
    assert list(models(plain)) == ["teacher", "compass", "fs-dfm", "only", "again", "both"]
    assert list(models(plain, "mask")) == ["teacher", "compass", "fs-dfm", "both"]
    plain["students"]["both"]["init_from"] = "only"
    with pytest.raises(UserError, match="does not have: both"):
        models(plain, "mask")
    plain["students"]["only"]["sources"] = "masks"
    with pytest.raises(UserError, match=r"unknown source of only 'masks'.*'mask'"):
        models(plain)


def test_a_method_that_is_made_for_one_source_is_trained_for_it_alone() -> None:
    plain = {"tokens": {}, "sources": ["uniform", "mask"], "models": {"mdlm": {"method": "mdlm"}}}
    assert [model.key for model in plan(plain).models] == ["mdlm-mask"]
    assert plan({"tokens": {}, "models": plain["models"]}).sources == ("mask",)


def test_a_single_command_takes_a_models_settings_without_the_other_models() -> None:
    tiny = read_recipe("tiny_cpu")
    assert tiny.values_for("corpus")["limit"] == 40000
    assert tiny.values_for("teacher") == tiny.values_for("dfm")
    assert tiny.values_for("teacher")["loop"]["steps"] == 560
    assert read_recipe("mask_170m").values_for("teacher")["source"] == "mask"
    assert tiny.values_for("student")["loop"]["steps"] == 260
    assert "policy" not in tiny.values_for("student")  # FS-DFM
    assert tiny.values_for("ts-dfm")["policy"] == "sequence-to-token"  # by which `tsdfm student` knows the method
    found = tiny.values_for("ts-dfm")
    assert found["loop"]["steps"] == 115
    assert "init_from" not in found
    with pytest.raises(UserError, match="no mdlm"):
        tiny.values_for("mdlm")


def test_a_model_waits_for_the_pipelines_judge() -> None:
    """`own` and `judge` may name it; it is one for all sources, and trained before."""
    reinforce = {"method": "reinforce", "own": "judge", "judge": "judge"}
    plain = {"tokens": {}, "judge": {}, "models": {"reinforce": reinforce, "teacher": {"method": "dfm"}}}
    found = models(plain)["reinforce"]
    assert (found.settings.own, found.settings.judge) == (OUT / "judge", "out/judge")
    assert found.settings.init_from == OUT / "teacher-uniform"
    assert found.needs == {"judge", "teacher-uniform"}
    both = make_plan(Recipe([{**plain, "sources": ["uniform", "mask"]}], {}), OUT)
    assert [model.key for model in both.training()][::2] == ["teacher-uniform", "teacher-mask"]
    outside = models({**plain, "models": {**plain["models"], "reinforce": {**reinforce, "judge": "gpt2"}}})["reinforce"]
    assert outside.settings.judge == "gpt2"
    with pytest.raises(UserError, match="call the model of that name something else"):
        plan({**plain, "models": {"judge": {"method": "dfm"}}})
