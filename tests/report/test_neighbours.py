"""`tsdfm report neighbours`: methods of both sources, other jumps, one reference curve; and `prefix` for any method."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import main
from tsdfm.report.cells import load_cell
from tsdfm.report.commands.neighbours import NEAR
from tsdfm.report.paper import QUOTES
from tsdfm.report.runs import find_runs, run_at

FEW = ["--steps", "2,3", "--temperatures", "0.6,1.0,1.4", "--samples", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def masked(report_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of the mask source on the same tokens, by a method whose bound has another name."""
    out = tmp_path_factory.mktemp("masked") / "mdlm"
    net = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2", "--net.cond", "16"]
    loop = ["--loop.steps", "6", "--loop.batch", "8", "--loop.device", "cpu", "--optim.warmup", "2"]
    words = ["--tokens", str(report_home / "tokens"), "--out", str(out), "--eval-rows", "8", "--eval-times", "2"]
    assert main(["train", "mdlm", *words, *net, *loop]) == 0
    return out


@pytest.fixture(scope="module")
def made(report_home: Path, masked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("neighbours")
    runs = [str(report_home), str(masked), f"{masked}@remdm-cap:0.5", "--also", "fs-dfm@hazard-cumulative"]
    assert main(["report", "neighbours", *runs, "--out", str(out), "--reference", "fs-dfm", *FEW]) == 0
    return json.loads((out / "neighbours.json").read_text()), out


def ours(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if "run" in row]


def test_a_row_for_each_method_and_step_count(made: tuple[dict[str, Any], Path]) -> None:
    found, out = made
    methods = ["teacher", "fs-dfm", "fs-dfm@hazard-cumulative", "control", "ts-dfm", "mdlm", "mdlm@remdm-cap:0.5"]
    assert [(row["method"], row["steps"]) for row in ours(found)] == [(m, at) for at in (2, 3) for m in methods]
    for row in ours(found):
        assert (row["nfe"], row["temperature"], row["top_p"]) == (row["steps"], 1.0, 1.0)
        assert row["entropy_nats"] == pytest.approx(row["entropy_bits"] * math.log(2))
        assert row["seconds_a_text"] == pytest.approx(row["seconds"] / 4)
    jumps = {row["method"]: row["jump"] for row in ours(found)}
    assert jumps["mdlm@remdm-cap:0.5"] == "remdm-cap:0.5"
    assert jumps["mdlm"] == "ancestral"
    labels = [column["label"] for column in found["columns"]]
    assert {"valid stories", "T", "top-p", "NFE", "bigram entropy", "s a text"} <= set(labels)
    assert "perplexity" not in labels  # the world judges
    assert not any(row.get("paper") for row in found["rows"])
    assert "| mdlm@remdm-cap:0.5 | mask |" in (out / "neighbours.md").read_text()


def test_other_jumps_write_other_texts(made: tuple[dict[str, Any], Path]) -> None:
    rows = {(row["method"], row["steps"]): row["entropy_bits"] for row in ours(made[0])}
    assert rows["mdlm", 3] != rows["mdlm@remdm-cap:0.5", 3]
    assert rows["fs-dfm", 3] != rows["fs-dfm@hazard-cumulative", 3]


def test_bounds_stand_beside_their_names(made: tuple[dict[str, Any], Path]) -> None:
    found = json.loads((made[1] / "neighbours-bounds.json").read_text())
    names = [(row["method"], row["bound"]) for row in found["rows"]]
    assert names == [("mdlm", "NELBO"), *((m, "flow ELBO") for m in ("teacher", "fs-dfm", "control", "ts-dfm"))]
    assert all(row["nats"] > 0 and row["bits"] > 0 for row in found["rows"])


def test_passes_are_a_mean_where_the_sampler_decides_them(masked: Path, report_home: Path, tmp_path: Path) -> None:
    words = ["--steps", "8", "--temperatures", "1.0", "--samples", "4", "--device", "cpu", "--out", str(tmp_path)]
    words += ["--tokens", str(report_home / "tokens"), "--world", "small"]
    assert main(["report", "neighbours", f"{masked}@eb:60", *words]) == 0
    (row,) = ours(json.loads((tmp_path / "neighbours.json").read_text()))
    assert row["steps"] == 8
    assert 1 < row["nfe"] < 8


def test_tokens_seen_are_those_of_the_start_and_its_own(made: tuple[dict[str, Any], Path], report_home: Path) -> None:
    """60 steps of 16 rows of 48 tokens, then twice 6 steps of 4."""
    seen = {row["method"]: row["tokens"] for row in ours(made[0])}
    assert seen["teacher"] == [60 * 16 * 48]
    assert seen["ts-dfm"] == [60 * 16 * 48, 6 * 4 * 48, 6 * 4 * 48]
    assert seen["fs-dfm@hazard-cumulative"] == seen["fs-dfm"]
    gone = run_at(report_home / "fs-dfm-uniform")
    gone.manifest["inputs"]["init_from"]["path"] = "/gone/elsewhere"
    assert gone.tokens_seen() == [None, 6 * 4 * 48]
    assert gone.started_from() == "elsewhere"


def test_perplexity_is_over_the_reference_curve_at_its_own_entropy(made: tuple[dict[str, Any], Path]) -> None:
    """Between its temperatures the reference's log-perplexity is linear in entropy."""
    found, _ = made
    curve = sorted((p["entropy_bits"], math.log(p["ppl"])) for p in found["points"] if p["method"] == "fs-dfm")
    assert len(curve) == 3
    seen = set()
    for row in ours(found):
        h = row["entropy_bits"]
        seen.add(row["at_own"] if row["at_own"] in ("reference", "outside") else "inside")
        if not curve[0][0] <= h <= curve[-1][0]:
            assert row["at_own"] == "outside"
            continue
        (a, y), (b, z) = next(two for two in pairwise(curve) if two[0][0] <= h <= two[1][0])
        wanted = row["ppl"] / math.exp(y + (z - y) * (h - a) / (b - a))
        assert row["ratio_at_own_entropy"] == pytest.approx(wanted)
    assert seen == {"reference", "outside", "inside"}
    goal, own = found["target"]["entropy_bits"], {p["method"]: [] for p in found["points"]}
    for p in found["points"]:
        own[p["method"]].append((p["entropy_bits"], math.log(p["ppl"])))
    told = {row["method"]: row.get("at_real") for row in ours(found) if row["steps"] == found["points"][0]["steps"]}
    for name, points in own.items():
        (first, y), *_, (last, z) = sorted(points)
        assert (told[name] is not None) == (first <= goal <= last)
        assert told[name] is None or min(math.exp(v) for _, v in points) <= told[name] <= max(
            math.exp(v) for _, v in points
        )
    assert next(row for row in ours(found) if row["at_own"] == "reference")["method"] == "fs-dfm"


def test_the_figure_has_a_curve_for_each_method(made: tuple[dict[str, Any], Path]) -> None:
    found, text = made[0], (made[1] / "neighbours.svg").read_text()
    assert text.count('class="chart"') == 2  # one a source
    own = {(p["source"], p["method"]) for p in found["points"] if "@" not in p["method"]}
    near = {
        (p["source"], p["method"])
        for p in found["points"]
        if abs(p["entropy_bits"] - found["target"]["entropy_bits"]) <= NEAR
    }
    assert own & near
    assert text.count("<polyline") == len(own & near)


def test_a_second_run_samples_nothing(made: tuple[dict[str, Any], Path], report_home: Path, masked: Path) -> None:
    found, out = made
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    runs = [report_home, masked, f"{masked}@remdm-cap:0.5", f"{report_home}/fs-dfm-uniform@hazard-cumulative"]
    words = ["--out", str(out), "--reference", "fs-dfm", "--curves", "false"]
    assert main(["report", "neighbours", *map(str, runs), *words, *FEW]) == 0
    again = json.loads((out / "neighbours.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before
    of_curves = {"at_real"}
    assert again["rows"] == [{k: v for k, v in row.items() if k not in of_curves} for row in found["rows"]]
    assert "points" not in again


def test_a_network_judge_gives_perplexity_and_mauve(report_home: Path, own_judge: Path, tmp_path: Path) -> None:
    words = ["--steps", "2", "--temperatures", "1.0", "--samples", "16", "--world", "", "--judges", str(own_judge)]
    runs = [str(report_home / f"{name}-uniform") for name in ("teacher", "fs-dfm")]
    assert main(["report", "neighbours", *runs, "--out", str(tmp_path), "--device", "cpu", *words]) == 0
    found = json.loads((tmp_path / "neighbours.json").read_text())
    assert {"perplexity", "MAUVE"} <= {column["label"] for column in found["columns"]}
    assert all(0 < row["mauve"] <= 1 for row in ours(found))
    assert found["reference"] == "teacher"


def test_the_papers_rows_stand_beside_ours_where_they_have_its_steps() -> None:
    rows = [row for row in QUOTES["neighbours"].rows(steps=(4, 8)) if row["method"].startswith("TS-DFM")]
    assert [(row["steps"], row["ppl"], row["entropy_bits"], row["size"], row["tokens_seen"]) for row in rows] == [
        (8, 56.1, 7.2, "0.17B", "78.7B + 6.4B")
    ]


def test_continuations_by_any_method_and_jump(masked: Path, report_home: Path, tmp_path: Path) -> None:
    runs = [f"{masked}", f"{masked}@remdm-loop:0.3", f"{report_home}/teacher-uniform@hazard-euler"]
    words = ["--out", str(tmp_path), "--steps", "3", "--samples", "4", "--device", "cpu"]
    assert main(["report", "prefix", *runs, *words, "--tokens", str(report_home / "tokens"), "--world", "small"]) == 0
    found = json.loads((tmp_path / "prefix.json").read_text())
    assert [row["method"] for row in ours(found)] == ["teacher@hazard-euler", "mdlm", "mdlm@remdm-loop:0.3"]
    assert {row["nfe"] for row in ours(found)} == {3}
    for path in (tmp_path / "cells").glob("*-3-*.json"):
        cell = load_cell(path)
        assert all(text.startswith(prefix) for text, prefix in zip(cell.texts, cell.prefixes or (), strict=True))


def test_measuring_a_run_by_another_jump(masked: Path, report_home: Path, tmp_path: Path) -> None:
    words = ["--steps", "2", "--teacher-steps", "2", "--samples", "2", "--tokens", str(report_home / "tokens")]
    runs = [str(masked), f"{masked}@remdm-cap:0.5"]
    assert main(["report", "measure", *runs, "--out", str(tmp_path), "--device", "cpu", *words]) == 0
    rows = json.loads((tmp_path / "metrics.json").read_text())
    assert [(row["method"], row.get("jump")) for row in rows[:2]] == [
        ("mdlm", "ancestral"),
        ("mdlm@remdm-cap:0.5", "remdm-cap:0.5"),
    ]


def test_a_run_by_another_jump_is_found(masked: Path) -> None:
    plain, other = find_runs([masked, f"{masked}@remdm-cap:0.5"]).models
    assert (plain.method, plain.jump) == ("mdlm", "")
    assert (other.method, other.name, other.jump) == ("mdlm@remdm-cap:0.5", "mdlm@remdm-cap:0.5", "remdm-cap:0.5")
    assert other.path == plain.path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{home}", "--reference", "nobody"], "no run is called nobody: give --reference one of teacher, fs-dfm"),
        (["{home}/fs-dfm-uniform@nothing"], "unknown jump 'nothing'"),
        (["{home}/fs-dfm-uniform@eb:0.1"], "mask"),
        (["{home}/nowhere@euler"], "no folder at"),
        (["{home}", "--also", "fs-dfm"], "also takes METHOD@JUMP, not 'fs-dfm'; the methods here: control, fs-dfm"),
        (["{home}", "--also", "mdlm@euler"], "also takes METHOD@JUMP, not 'mdlm@euler'"),
        (["{home}", "--steps", "0"], "steps must be from 1 to"),
        (["{home}", "--temperatures", "0,1"], "must be above 0"),
    ],
)
def test_mistakes(words: list[str], said: str, report_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word.format(home=report_home) for word in words]
    assert main(["report", "neighbours", *given, "--device", "cpu", "--samples", "2"]) == 2
    err = capsys.readouterr().err
    assert said in err.replace("\n", " ")
    assert not (report_home / "report").exists()  # refused before anything was sampled
