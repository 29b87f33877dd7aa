"""Finding runs: in a pipeline's folder, by name, after a move; and walks against the sampler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tsdfm
from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.errors import UserError
from tsdfm.report.cells import shared_start
from tsdfm.report.commands.diversity import allocation, diversity, sources, walk
from tsdfm.report.commands.overhead import benchmark_rows, step_time, steps_in
from tsdfm.report.desk import size, world_of
from tsdfm.report.runs import TrainedRun, find_runs, run_at
from tsdfm.report.settings import MeasureSettings
from tsdfm.samples.given import Given
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

Capture = pytest.CaptureFixture[str]


def test_a_pipelines_folder_in_order(report_home: Path) -> None:
    found = find_runs([report_home])
    names = ["teacher-uniform", "fs-dfm-uniform", "control-uniform", "ts-dfm-uniform"]
    assert [run.name for run in found.models] == names
    assert [run.name for run in found.compasses] == ["compass-uniform"]
    assert found.tokens == report_home / "tokens"
    assert found.home == report_home
    assert [run.started_from() for run in found.models] == [None, "DFM", "FS-DFM", "FS-DFM"]
    assert found.compass_for(found.models[1]) == report_home / "compass-uniform"


def test_named_runs(report_home: Path) -> None:
    found = find_runs([report_home / "ts-dfm-uniform", report_home / "fs-dfm-uniform"])
    assert [run.method for run in found.models] == ["fs-dfm", "ts-dfm"]
    assert found.home == report_home
    assert found.tokens == report_home / "tokens"
    assert found.compass_for(found.models[0]) == report_home / "compass-uniform"
    one = find_runs([report_home / "fs-dfm-uniform"])
    assert one.home == report_home


def test_a_folder_that_was_moved(report_home: Path, tmp_path: Path) -> None:
    for name in ("tokens", "fs-dfm-uniform", "compass-uniform"):
        shutil.copytree(report_home / name, tmp_path / "moved" / name)
    found = find_runs([tmp_path / "moved"])
    assert found.tokens == tmp_path / "moved" / "tokens"
    assert found.compass_for(found.models[0]) == tmp_path / "moved" / "compass-uniform"


@pytest.fixture
def mixed(report_home: Path, tmp_path: Path) -> Path:
    """A folder with a student and tokens of another tokenizer, whose name comes first."""
    shutil.copytree(report_home / "fs-dfm-uniform", tmp_path / "mixed" / "fs-dfm-uniform")
    same = {"corpus": report_home / "corpus", "length": 48, "layout": "packed", "workers": 1}
    make_tokens(TokensSettings(**same, vocab_size=300, out=tmp_path / "mixed" / "alt"))
    return tmp_path / "mixed"


def test_tokens_are_those_the_models_were_trained_on(report_home: Path, mixed: Path) -> None:
    assert find_runs([mixed]).tokens == report_home / "tokens"  # where they still are
    other = {"corpus": report_home / "corpus", "tokenizer_files": report_home / "tokens", "workers": 1}
    make_tokens(TokensSettings(**other, length=32, layout="packed", out=mixed / "tokens"))
    assert find_runs([mixed]).tokens == report_home / "tokens"
    shutil.copytree(report_home / "tokens", mixed / "own")  # moved, and called otherwise
    assert find_runs([mixed]).tokens == mixed / "own"
    assert find_runs([mixed, mixed / "tokens"]).tokens == mixed / "tokens"  # named
    assert find_runs([mixed], mixed / "tokens").tokens == mixed / "tokens"


def test_tokens_that_are_gone_are_looked_for_by_name_and_tokenizer(report_home: Path, mixed: Path) -> None:
    path, same = mixed / "fs-dfm-uniform" / "manifest.json", {"tokenizer_files": report_home / "tokens", "workers": 1}
    about = json.loads(path.read_text())
    about["inputs"]["tokens"]["path"] = "gone/rows"
    path.write_text(json.dumps(about))
    for name in ("more", "tokens", "rows"):  # each before those of the last rounds
        make_tokens(TokensSettings(**same, corpus=report_home / "corpus", length=32, layout="packed", out=mixed / name))
        assert find_runs([mixed]).tokens == mixed / name


def test_tokens_of_another_tokenizer_are_refused(report_home: Path, mixed: Path, capsys: Capture) -> None:
    asked = ["report", "measure", str(mixed), "--steps", "2", "--samples", "2", "--world", "small", "--device", "cpu"]
    assert main([*asked, "--tokens", str(mixed / "alt")]) == 2
    said = f"{mixed / 'alt'} has another tokenizer than fs-dfm-uniform: give --tokens those it was trained on"
    assert capsys.readouterr().err == f"tsdfm: {said}\n"
    assert not (mixed / "report").exists()
    assert main(asked) == 0


def test_tokens_of_which_nothing_is_held_out(report_home: Path, mixed: Path, capsys: Capture) -> None:
    """Nothing is sampled for a table that needs held-out text; the others do without."""
    (mixed.parent / "texts.txt").write_text("Mia has a dog.\n" * 99)
    corpus = make_corpus(CorpusSettings(path=mixed.parent / "texts.txt", cut="lines", valid=0, out=mixed / "corpus"))
    same = {"tokenizer_files": report_home / "tokens", "length": 32, "layout": "packed", "workers": 1}
    none = make_tokens(TokensSettings(**same, corpus=corpus, out=mixed / "none"))
    asked = [str(mixed), "--steps", "2", "--samples", "2", "--world", "small", "--device", "cpu"]
    assert main(["report", "measure", *asked, "--tokens", str(none)]) == 2
    assert "the valid split of" in capsys.readouterr().err
    assert not (mixed / "report" / "cells").exists()
    assert main(["report", "main", *asked, "--tokens", str(none)]) == 0
    assert "no held-out text was found" in (mixed / "report" / "main.md").read_text()


def test_what_is_no_run_is_refused(report_home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder at"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no finished teacher"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="holds no finished teacher"):
        find_runs([report_home / "tokens"])


def test_parameters_are_counted_without_making_them(report_home: Path) -> None:
    for run in find_runs([report_home]).models:
        net = tsdfm.load(run.path, "cpu").velocity.net
        assert run.parameters() == sum(p.numel() for p in net.parameters())
    assert [size(n) for n in (999, 1500, 1_681_413, 170_000_000, 1_300_000_000)] == [
        "999",
        "1.5K",
        "1.68M",
        "170M",
        "1.3B",
    ]


def test_the_world_is_found(report_home: Path, tmp_path: Path) -> None:
    assert world_of(report_home, {}) == "small"
    assert world_of(report_home, {"world": None}) == ""
    assert world_of(tmp_path, {}) == ""


def test_a_walk_in_two_parts_is_the_samplers_own(report_home: Path) -> None:
    made = tsdfm.load(report_home / "fs-dfm-uniform", "cpu")
    wanted = made.sample(3, 4, seed=9).tokens
    x, noise = sources(made, torch.arange(3), 9)
    half = walk(made, x, 0.0, 0.5, 2, noise, MeasureSettings())
    assert not torch.equal(half, wanted)
    assert torch.equal(walk(made, half, 0.5, 1.0, 2, noise, MeasureSettings()), wanted)


def test_continued_rows_keep_their_prefix_and_without_one_are_samples(report_home: Path) -> None:
    made = tsdfm.load(report_home / "fs-dfm-uniform", "cpu")
    rows = torch.randint(0, 50, (3, 48), generator=torch.Generator().manual_seed(0))
    rows[:, 0] = made.tokenizer.end_of_text
    sides, anchor = torch.zeros_like(rows), (torch.arange(48) < 1).expand(3, 48)
    same = made.sample(3, 4, 9, given=Given(anchor, rows, sides))
    assert torch.equal(same.tokens, made.sample(3, 4, 9).tokens)
    held = torch.arange(48) < torch.tensor([[5], [17], [30]])
    found = made.sample(3, 4, 9, given=Given(held, rows, sides)).tokens
    assert torch.equal(found[held], rows[held])
    assert not torch.equal(found[~held], rows[~held])
    with pytest.raises(UserError, match="3 rows are given for 2 texts"):
        made.sample(2, 4, 9, given=Given(held, rows, sides))


def test_the_papers_step_allocation() -> None:
    assert allocation(8, 0.3) == (2, 5)  # the paper's own example
    assert allocation(8, 0.0) == (0, 8)
    assert allocation(8, 0.1) == (1, 7)
    assert allocation(10, 0.3) == (3, 7)  # 10 · (1 − 0.3) is a hair under 7 in floats
    assert allocation(8, 0.9) == (7, 1)


def test_diversity_of_groups_known_by_hand() -> None:
    same = torch.tensor([[[1, 2, 3, 4, 5, 6]] * 3])
    found = diversity(same, end=0)
    assert found["self_bleu"] == pytest.approx(1.0)
    assert (found["edit_distance"], found["positions"], found["agreement"]) == (0.0, 0.0, 1.0)
    # three completions that differ in the last of six places: two of three pairs, and two of three agree there
    mixed = torch.tensor([[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]]])
    found = diversity(mixed, end=0)
    assert found["edit_distance"] == pytest.approx(2 / 3 / 6)
    assert found["positions"] == pytest.approx(2 / 3)
    assert found["agreement"] == pytest.approx((5 + 2 / 3) / 6)
    assert found["distinct_2"] == pytest.approx(6 / 15)


def test_step_times_leave_out_the_first_interval(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"step": 10, "kind": "train", "seconds": 90.0},  # compiling
        {"step": 10, "kind": "eval", "elbo": 1.0},
        {"step": 20, "kind": "train", "seconds": 1.0},
        {"step": 30, "kind": "train", "seconds": 5.0},  # somebody else was busy
        {"step": 50, "kind": "train", "seconds": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 60, "ki')
    assert step_time(TrainedRun(tmp_path, {})) == (pytest.approx(150.0), 40)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert step_time(TrainedRun(tmp_path, {})) == (pytest.approx(9000.0), 10)
    (tmp_path / "metrics.jsonl").unlink()
    assert step_time(TrainedRun(tmp_path, {})) == (None, 0)


def test_a_benchmarks_rows(tmp_path: Path) -> None:
    rows = [
        {"batch": 8, "step": "fs-dfm", "ms": 100.0, "to fs-dfm": 1.0},
        {"batch": 8, "step": "ts-dfm", "ms": 150.0, "to fs-dfm": 1.5},
    ]
    (tmp_path / "student.json").write_text(json.dumps({"title": "t", "hardware": "a GPU", "rows": rows}))
    found = benchmark_rows(tmp_path / "student.json")
    assert [(row["method"], row["ms"], row["ratio"]) for row in found] == [
        ("fs-dfm", 100.0, 1.0),
        ("ts-dfm", 150.0, 1.5),
    ]
    assert found[0]["origin"] == "benchmark, a GPU"
    (tmp_path / "kernel.json").write_text(json.dumps({"title": "t", "rows": [{"case": "draw", "ms": 1.0}]}))
    with pytest.raises(UserError, match="times no student's step"):
        benchmark_rows(tmp_path / "kernel.json")


def test_shared_start() -> None:
    assert shared_start("abcd", "abxy") == "ab"
    assert shared_start("ab", "abc") == "ab"
    assert shared_start("caf\ufffd", "café") == "caf"
    assert shared_start("", "x") == ""


def test_a_recipe_is_not_run_but_its_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny_cpu", "mine.toml"):
        with pytest.raises(UserError, match=rf"`tsdfm pipeline {name} --out FOLDER` makes those of a recipe"):
            find_runs([Path(name)])
    with pytest.raises(UserError, match=r"no folder at runs/demo, .*`tsdfm pipeline RECIPE --out FOLDER`"):
        find_runs([Path("runs/demo")])  # a folder that is not there yet, and no recipe
    assert list(tmp_path.iterdir()) == []


def test_a_runs_kind_and_place_are_read_off_its_manifest(report_home: Path) -> None:
    runs = [run_at(report_home / f"{name}-uniform") for name in ("ts-dfm", "teacher")]
    assert [run.many_step for run in runs] == [False, True]
    assert [run.name for run in sorted(runs, key=lambda run: run.order)] == ["teacher-uniform", "ts-dfm-uniform"]
    other = TrainedRun(Path("x"), {"stage": "other", "model": {"source": "mask", "schedule": "cubic"}})
    assert other.many_step
    assert max(*runs, other, key=lambda run: run.order) is other


def changed(run: TrainedRun, **inputs: tuple[str, str]) -> TrainedRun:
    """The run with other inputs: a path and a hash each."""
    known = {name: {"path": path, "sha256": sha256} for name, (path, sha256) in inputs.items()}
    return TrainedRun(run.path, {**run.manifest, "inputs": {**run.manifest["inputs"], **known}})


def test_runs_differ_by_what_they_were_trained_from_and_on(report_home: Path, tmp_path: Path) -> None:
    run = run_at(report_home / "fs-dfm-uniform")
    assert changed(run).recipe == run.recipe
    gone, other = (changed(run, init_from=("gone/one", sha256)).recipe for sha256 in "ab")
    assert len({gone, other, run.recipe}) == 3  # of what is gone the hashes count
    assert changed(run, init_from=("gone/elsewhere", "a")).recipe == gone
    same = {"corpus": report_home / "corpus", "length": 48, "layout": "packed", "workers": 1}
    rows = make_tokens(TokensSettings(**same, vocab_size=300, out=tmp_path / "rows"))
    again = make_tokens(TokensSettings(**same, vocab_size=300, out=tmp_path / "again"))
    one, two = (changed(run, tokens=(str(at), at.name)).recipe for at in (rows, again))
    assert one == two != run.recipe


def test_judges_of_each_seed_are_no_difference(own_judge: Path, tmp_path: Path) -> None:
    def run(judge: Path) -> TrainedRun:
        inputs = {"judge": {"path": str(judge), "sha256": judge.parent.name}}
        about = {"stage": "reinforce", "model": {"method": "reinforce", "schedule": "poly:1"}, "inputs": inputs}
        return TrainedRun(judge.parent / "reinforce", {**about, "settings": {"judge": str(judge)}})

    for name, seed, steps in (("one", 1, 0), ("longer", 0, 99)):
        shutil.copytree(own_judge, tmp_path / name / "judge")
        about = json.loads((own_judge / "manifest.json").read_text())
        about["settings"]["loop"] |= {"seed": seed, "steps": steps or about["settings"]["loop"]["steps"]}
        (tmp_path / name / "judge" / "manifest.json").write_text(json.dumps(about))
    first, one, longer = (run(at).recipe for at in (own_judge, tmp_path / "one/judge", tmp_path / "longer/judge"))
    assert first == one != longer


def test_what_a_run_of_the_same_name_came_from_is_not_itself(report_home: Path, tmp_path: Path) -> None:
    shutil.copytree(report_home / "fs-dfm-uniform", tmp_path / "fs-dfm-uniform")
    origin = tmp_path / "old" / "fs-dfm-uniform"
    run = changed(run_at(tmp_path / "fs-dfm-uniform"), init_from=(str(origin), "a"))
    assert run.origin() == origin
    assert run.tokens_seen()[0] is None
    assert json.loads(run.recipe)[1]["init_from"] == "a"


def test_an_interrupted_interval_counts_the_steps_it_timed() -> None:
    """Logged at 100 and 150, resumed at 130: the seconds of the last line are of 20 steps."""
    before = {"step": 100, "tokens": 1000}
    whole = {"step": 150, "tokens": 1500, "seconds": 5.0, "tokens_per_s": 100.0}
    assert steps_in(whole, before) == 50
    assert steps_in({**whole, "seconds": 2.0}, before) == 20
    assert steps_in({"step": 150, "seconds": 5.0}, {"step": 100}) == 50
