"""The measuring stage: its rows, its cells, what is sampled again and what is not, and the mark of collapse."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tsdfm
from processes import torchrun
from tsdfm.cli import main as tsdfm_main
from tsdfm.compass import load_compass
from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import SMALL as SMALL_WORLD
from tsdfm.corpus.world import render
from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.metrics.intervals import Estimate
from tsdfm.metrics.ngrams import TextStats, entropy_bits
from tsdfm.metrics.perplexity import JudgeScores
from tsdfm.report.bench import Bench, bias_key, judge_stories, spread
from tsdfm.report.cells import Cells, load_cell, written
from tsdfm.report.desk import Desk
from tsdfm.report.measure import run
from tsdfm.report.rows import Row, rows_in
from tsdfm.report.runs import run_at
from tsdfm.report.settings import MainSettings, MeasureSettings
from tsdfm.report.summary import by_steps, closing
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel
from tsdfm.store.files import write_json
from tsdfm.tokens.rows import TokenRows

SMALL = MeasureSettings(steps=(2, 3), teacher_steps=(2,), samples=6, seed=5, device="cpu")
PROTOCOL = (
    *("method", "source", "steps", "nfe", "compass_calls", "guide", "samples", "length", "temperature", "top_p"),
    *("draw", "seed", "checkpoint", "judge", "tokens_per_s", "texts", "collapsed", "hardware"),
    *("valid", "valid_interval", "ppl", "ppl_interval", "nll", "nll_valid", "broken_rules", "ppl_corpus"),
    *("ppl_median", "bits_per_char", "entropy_bits", "entropy_nats", "entropy_interval", "bigram_entropy_bits"),
    *("repetition", "distinct_1", "distinct_2", "distinct_3", "next_token_accuracy", "judges"),
)


def measure(settings: MeasureSettings, path: Path, guide: Guide | None = None, bench: Bench | None = None) -> list[Any]:
    """The rows of a run at every step count, as JSON has them."""
    made, bench = run_at(path), bench or Bench(settings)
    cells = [bench.cell(made, steps, guide=guide) for steps in settings.steps_of(made)]
    return [bench.row(made, cell, guide=guide).plain() for cell in cells]


def no_sampling(*_: Any, **__: Any) -> None:
    raise AssertionError("sampled again")


def test_rows_follow_the_protocol_and_are_the_models_own_texts(report_home: Path) -> None:
    student = report_home / "fs-dfm-uniform"
    rows = measure(SMALL, student)
    assert [row["steps"] for row in rows] == [2, 3]
    assert not [name for name in PROTOCOL if name not in rows[0]]
    made = tsdfm.load(student, "cpu")
    samples = made.sample(6, 2, 5)
    assert rows[0]["texts"] == samples.texts[:2]
    end = made.tokenizer.end_of_text
    kept = []
    for row in samples.tokens[:, 1:].tolist():
        while row and row[-1] == end:
            row.pop()
        kept.append(torch.tensor(row, dtype=torch.int64))
    assert rows[0]["entropy_bits"] == pytest.approx(sum(entropy_bits(kept)) / 6)
    assert rows[0]["method"] == "fs-dfm"
    assert rows[0]["checkpoint"] == made.velocity.sha256[:16]
    assert [Row.read(row).plain() for row in json.loads(json.dumps(rows))] == rows


def test_a_teacher_has_its_own_steps_unless_there_are_none(report_home: Path) -> None:
    teacher = report_home / "teacher-uniform"
    assert [row["steps"] for row in measure(SMALL, teacher)] == [2]
    own = replace(SMALL, teacher_steps=())
    assert [row["steps"] for row in measure(own, teacher)] == [2, 3]
    model, bench = run_at(teacher), Bench(own)
    assert bench.row(model, bench.cell(model, 2), name="mine").method == "mine"


def test_passes_are_made_as_asked(report_home: Path, tmp_path: Path) -> None:
    run = run_at(report_home / "fs-dfm-uniform")
    assert Bench(replace(SMALL, quick="off")).model(run).passes.how == "off"
    desk = Desk("main", MainSettings(runs=(report_home,), out=tmp_path, device="cpu", quick="record"))
    assert desk.model(run).passes.how == "record"


def test_nothing_is_sampled_twice(report_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, tokens = [report_home / "teacher-uniform", report_home / "fs-dfm-uniform"], report_home / "tokens"
    run(SMALL, models, tokens, tmp_path)
    first = json.loads((tmp_path / "metrics.json").read_text())
    assert [row["method"] for row in first] == ["teacher", "fs-dfm", "fs-dfm", "held-out text"]
    assert json.loads((tmp_path / "manifest.json").read_text())["stage"] == "report"
    cells = sorted((tmp_path / "cells").glob("fs-dfm-uniform-*.json"))
    assert len(cells) == 2
    with monkeypatch.context() as patch:
        patch.setattr(TextModel, "sample", no_sampling)
        run(SMALL, models, tokens, tmp_path)
        assert json.loads((tmp_path / "metrics.json").read_text()) == first
        another = replace(SMALL, world="", judges=("world:full",))  # another judge reads the same texts
        run(another, models, tokens, tmp_path)
        with pytest.raises(AssertionError, match="sampled again"):
            run(replace(SMALL, temperature=0.9), models, tokens, tmp_path)
    cells[0].unlink()
    calls = []
    plain = TextModel.sample
    monkeypatch.setattr(TextModel, "sample", lambda *a, **k: calls.append(1) or plain(*a, **k))
    run(SMALL, models, tokens, tmp_path)
    assert len(calls) == 1  # what was missing, and no more
    again = json.loads((tmp_path / "metrics.json").read_text())
    timeless = [[{k: v for k, v in row.items() if k != "tokens_per_s"} for row in rows] for rows in (first, again)]
    assert timeless[0] == timeless[1]


def test_runs_of_one_method_have_a_row_each(report_home: Path, tmp_path: Path) -> None:
    """By their folders' names, as `report main` calls them, or by what tells their paths apart."""
    few = ["--steps", "2", "--samples", "4", "--world", "small", "--device", "cpu", "--out", str(tmp_path / "report")]
    few += ["--tokens", str(report_home / "tokens")]
    for name in ("one", "other", "again/one"):
        shutil.copytree(report_home / "fs-dfm-uniform", tmp_path / name)
    for places in (("one", "other"), ("one", "again/one")):
        runs = [str(tmp_path / place) for place in places]
        assert tsdfm_main(["report", "measure", *runs, *few]) == 0
        called = [row["method"] for row in by_steps(rows_in(tmp_path / "report/metrics.json")).rows]
        shown = places if places[1] == "other" else (f"{tmp_path.name}/one", "again/one")
        assert called == [*(f"fs-dfm [{each}]" for each in shown), "held-out text"]
        assert [row["method"] for row in json.loads((tmp_path / "report/metrics.json").read_text())][:2] == [
            "fs-dfm"
        ] * 2
        assert tsdfm_main(["report", "main", *runs, *few]) == 0
        rows = json.loads((tmp_path / "report/main.json").read_text())["rows"]
        assert [row["method"] for row in rows if not row.get("paper")] == called


def test_a_guided_cell_is_another_cell(report_home: Path, tmp_path: Path) -> None:
    student = report_home / "fs-dfm-uniform"
    compass = load_compass(report_home / "compass-uniform", "cpu")
    few = replace(SMALL, steps=(2,), samples=3)
    bench = Bench(few, Cells(tmp_path))
    plain = measure(few, student, bench=bench)[0]
    found = {}
    for k in (1, 3):
        guide = Guide("sequence-to-token", compass, NavigateSettings(k=k, tau=0.0))
        found[k] = measure(few, student, guide=guide, bench=bench)[0]
    assert (plain["guide"], plain["compass_calls"]) == (None, 0.0)
    assert found[1]["guide"] == "sequence-to-token"
    assert found[3]["compass_calls"] > found[1]["compass_calls"] > 0
    assert len(list(tmp_path.glob("*.json"))) == 3
    guided = [c for c in map(load_cell, tmp_path.glob("*.json")) if c.key["guide"]]
    assert all(c.navigation["nav/accept"] <= 1 for c in guided)


def test_judges_side_by_side(report_home: Path) -> None:
    two = replace(SMALL, steps=(2,), judges=("world:full", "world:small"))
    row = measure(two, report_home / "fs-dfm-uniform")[0]
    assert [name.rsplit(":", 1)[0] for name in row["judges"]] == ["story-world:small", "story-world:full"]
    assert row["judge"] == next(iter(row["judges"]))
    assert row["ppl"] == pytest.approx(row["judges"][row["judge"]]["ppl"])
    assert row["nll"] == pytest.approx(row["judges"][row["judge"]]["nll"])
    bare = measure(replace(SMALL, steps=(2,), world=None), report_home / "fs-dfm-uniform")[0]
    assert "valid" not in bare
    assert bare["judges"] == {}


def test_held_out_text_is_read_as_it_is(report_home: Path) -> None:
    row = Bench(SMALL).target(report_home / "tokens").plain()
    rows = TokenRows(report_home / "tokens", "valid")
    assert row["method"] == "held-out text"
    assert row["valid"] == 1.0
    assert row["samples"] == 6
    first = [int(t) for t in rows[0] if t != rows.end_of_text]
    assert row["texts"][0] == rows.tokenizer.decode(first)


def test_held_out_rows_are_spread_over_the_split(report_home: Path, tmp_path: Path) -> None:
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 8) == [0, 1, 2]
    rows = TokenRows(report_home / "tokens", "valid")
    Bench(replace(SMALL, samples=4), Cells(tmp_path)).target(report_home / "tokens")
    (cell,) = map(load_cell, tmp_path.glob("*.json"))
    assert cell.tokens == [rows[i * len(rows) // 4].tolist() for i in range(4)]


def test_a_bias_is_part_of_the_key(report_home: Path, tmp_path: Path) -> None:
    made, bench = run_at(report_home / "fs-dfm-uniform"), Bench(replace(SMALL, samples=4), Cells(tmp_path))
    plain = bench.cell(made, 2)
    bias = torch.zeros(bench.model(made).velocity.spec.vocab)
    bias[7] = 20.0
    pushed = bench.cell(made, 2, bias=bias)
    assert "bias" not in plain.key
    assert pushed.key == {**plain.key, "bias": bias_key(bias)}
    assert bias_key(bias) == bias_key(bias.double()) != bias_key(bias * 2)
    assert [row.count(7) > 40 for row in pushed.tokens] == [True] * 4  # all but the anchor and a few
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_rows_of_a_cell_are_what_was_written(report_home: Path) -> None:
    cell = Bench(replace(SMALL, samples=5)).cell(run_at(report_home / "fs-dfm-uniform"), 2)
    cell.given = [0, 3, 48, 1, 7]
    cell.tokens[3][1:] = [cell.end_of_text] * 47  # nothing but padding
    for row, tokens, given in zip(cell.rows(), cell.tokens, cell.given, strict=True):
        kept = tokens[max(cell.anchor, given) :]
        while kept and kept[-1] == cell.end_of_text:
            kept.pop()
        assert row.tolist() == kept


def test_more_than_one_bit_under_real_text_is_collapsed() -> None:
    def row(method: str, bits: float) -> Row:
        return Row(method=method, text=TextStats(entropy_bits=Estimate(bits)))

    rows, target = [row("a", bits) for bits in (4.0, 3.01, 2.99)], row("held-out text", 4.0)
    assert [one.against(target).collapsed for one in (*rows, target)] == [False, False, True, False]
    assert [one.against(None).collapsed for one in rows] == [False, False, False]  # nothing to compare with


def test_a_table_without_a_judge_says_how_to_name_one() -> None:
    text, judged = TextStats(entropy_bits=Estimate(4.0)), JudgeScores(ppl=Estimate(9.0))
    alone, read = (Row(method="a", steps=8, source="mask", text=text, judges=by) for by in ({}, {"x": judged}))
    assert any("--judges" in note for note in by_steps([alone]).notes)
    assert by_steps([read]).notes == []


def test_padding_goes_and_only_padding() -> None:
    assert written(torch.tensor([1, 9, 2, 9, 9]), 9).tolist() == [1, 9, 2]
    assert written(torch.tensor([1, 2]), 9).tolist() == [1, 2]
    assert written(torch.tensor([9, 9]), 9).tolist() == []


def test_stories_are_counted_and_weighed() -> None:
    good = [render(SMALL_WORLD.draw(random.Random(n))) for n in range(3)]
    bad = good[0].replace(" has ", " have ", 1)
    found = judge_stories([*good, bad], SMALL_WORLD)
    assert found.valid.value == 0.75
    assert found.valid.low < 0.75 < found.valid.high
    assert found.broken_rules == {"grammar": 1}
    exact = [-judge(text, SMALL_WORLD).log_likelihood for text in good]
    assert found.nll_valid == pytest.approx(sum(exact) / 3)
    assert found.ppl is not None
    assert found.ppl.value == pytest.approx(sum(judge(text, SMALL_WORLD).perplexity for text in (*good, bad)) / 4)
    assert found.nll is not None
    assert math.isfinite(found.nll)


def test_a_pipeline_ends_with_one_table_three_texts_and_a_place(
    report_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [report_home / f"{name}-uniform" for name in ("teacher", "fs-dfm", "control", "ts-dfm")]
    run(SMALL, models, report_home / "tokens", tmp_path / "report")
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 4  # a line a model
    closing(tmp_path, Path("index.html"))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("│")]) == 5  # four models and held-out text
    assert sum(" source, 2 steps: " in line for line in lines) == 3
    assert lines[-1] == "the report is index.html: open it in a browser"
    run(SMALL, models[:1], report_home / "tokens", tmp_path / "report", verbose=True)
    said = capsys.readouterr()
    assert "perplexity" in said.err
    assert "[" in said.out  # with intervals


@pytest.mark.parametrize(
    "wrong", [{"steps": ()}, {"samples": 0}, {"teacher_steps": (0,)}, {"temperatures": (0.0,)}, {"show": -1}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        MeasureSettings(**wrong)


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": 1, "tokens": [3]}')
    with pytest.raises(UserError, match=r"x\.json is damaged"):
        load_cell(tmp_path / "x.json")


def test_packed_rows_are_read_whole(report_home: Path, tmp_path: Path) -> None:
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    packed = TokensSettings(
        corpus=report_home / "corpus", out=tmp_path / "tokens", vocab_size=400, length=48, layout="packed", workers=1
    )
    row = Bench(replace(SMALL, world="", judges=("world:small",))).target(make_tokens(packed)).plain()
    rows = TokenRows(tmp_path / "tokens", "valid")
    assert rows.anchor == 0
    assert row["texts"][0] == rows.tokenizer.decode(rows[0].astype("int64"), end="\n\n")
    assert "\n\n" in row["texts"][0]
    assert "valid" not in row
    assert row["ppl"] > 1


def test_two_processes_share_the_cells_and_write_the_same_metrics(report_home: Path, tmp_path: Path) -> None:
    runs = [str(report_home / name) for name in ("teacher-uniform", "fs-dfm-uniform")]
    words = ["report", "measure", *runs, "--steps", "2,3", "--teacher-steps", "2", "--samples", "6", "--device", "cpu"]
    words += ["--tokens", str(report_home / "tokens"), "--world", "small"]
    alone = tsdfm_main([*words, "--out", str(tmp_path / "one")])
    child = torchrun(tsdfm.__path__[0] + "/__main__.py", *words, "--out", str(tmp_path / "two"))
    assert (alone, child.wait()) == (0, 0), child.said()
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    told = {"tokens_per_s", "hardware"}  # threads are shared out among processes
    assert [{k: v for k, v in row.items() if k not in told} for row in two] == [
        {k: v for k, v in row.items() if k not in told} for row in one
    ]
    assert child.said().count("report measure") == 1


def test_an_error_of_one_process_ends_all(report_home: Path, tmp_path: Path) -> None:
    place = tmp_path / "fs"
    shutil.copytree(report_home / "fs-dfm-uniform", place)
    for path in place.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    words = [
        "report",
        "measure",
        str(report_home / "teacher-uniform"),
        str(place),
        "--tokens",
        str(report_home / "tokens"),
    ]
    words += ["--steps", "2", "--teacher-steps", "2", "--samples", "2", "--device", "cpu", "--world", "small"]
    child = torchrun(tsdfm.__path__[0] + "/__main__.py", *words, "--out", str(tmp_path / "out"))
    assert child.wait() != 0
    assert "process 1: " in child.said()
    assert "tsdfm: another process stopped with an error: see its message" in child.said()
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_measured_passes_may_be_a_mean(tmp_path: Path) -> None:
    row = {"method": "dream", "source": "mask", "steps": 8, "nfe": 7.96, "samples": 2, "entropy_bits": 4.0}
    write_json(tmp_path / "metrics.json", [row])
    assert rows_in(tmp_path / "metrics.json")[0].nfe == 7.96
