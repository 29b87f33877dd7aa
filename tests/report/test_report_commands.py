"""Every `tsdfm report …` command, end to end on a small pipeline's folder."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tsdfm.cli import VERBS, load, main, read
from tsdfm.corpus.world import world_named
from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.judges.world import WorldJudge
from tsdfm.report.cells import load_cell
from tsdfm.report.commands import TABLES
from tsdfm.report.commands.mauve import nearness
from tsdfm.report.desk import command_line
from tsdfm.report.paper import QUOTES
from tsdfm.report.settings import CandidatesSettings, FrontierSettings, PolicySettings
from tsdfm.tokens.rows import TokenRows

Capture = pytest.CaptureFixture[str]
SAMPLES = ["--samples", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def out(report_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def table(home: Path, out: Path, name: str, *more: str, file: str = "") -> dict[str, Any]:
    """Run a command and read its JSON; the Markdown is there too."""
    assert main(["report", name, str(home), "--out", str(out), *SAMPLES, *more]) == 0
    file = file or name
    assert (out / f"{file}.md").read_text().strip()
    found: dict[str, Any] = json.loads((out / f"{file}.json").read_text())
    assert {"title", "columns", "rows", "notes", "paper", "command", "hardware", "seed", "samples"} <= set(found)
    for column in found["columns"]:
        assert {"name", "label", "align", "format"} == set(column)
    assert found["command"].startswith(f"tsdfm report {name} ")
    if name in QUOTES:
        assert found["paper"]["label"] == QUOTES[name].label
    return found


def ours(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if not row.get("paper") and row.get("method") != "held-out text"]


def test_main(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "main", "--steps", "2,4")
    assert [row["method"] for row in ours(found)] == ["teacher", "fs-dfm", "control", "ts-dfm"]
    quoted = [row for row in found["rows"] if row.get("paper")]
    assert len(quoted) == 4
    assert quoted[0]["at_4"] == "749.9 (8.1)"  # with the paper's own digits
    assert quoted[0]["ppl_1024"] == QUOTES["main"].figures["uniform"]["teacher"][1024][1] == 82.8
    assert "paper, 170M, GPT-2 judge" in (out / "main.md").read_text()
    held_out = next(row for row in found["rows"] if row["method"] == "held-out text")
    assert held_out["at_2"] == held_out["at_4"]
    assert any("story-world:small:" in note and "4 texts" in note for note in found["notes"])
    valid = json.loads((out / "main-valid.json").read_text())
    assert [c["name"] for c in valid["columns"]][-2:] == ["valid_2", "valid_4"]


def test_main_under_a_second_judge(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "main", "--steps", "2", "--judges", "world:full")
    second = json.loads((out / "main-judge-2.json").read_text())
    assert "story-world:full:" in second["title"]
    assert [row["method"] for row in second["rows"]] == ["teacher", "fs-dfm", "control", "ts-dfm", "held-out text"]
    for one, two in zip(ours(found), ours(second), strict=True):
        assert one["entropy_bits_2"] == two["entropy_bits_2"]
        assert one["ppl_2"] != two["ppl_2"]
    assert second["rows"][-1]["ppl"] != next(r for r in found["rows"] if r["method"] == "held-out text")["ppl"]


def test_measure_and_its_settings_are_taken_up(report_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(report_home, home)
    words = ["--steps", "2", "--teacher-steps", "3", "--samples", "3", "--seed", "8", "--frontier"]
    assert main(["report", "measure", str(home), *words]) == 0
    rows = json.loads((home / "report" / "metrics.json").read_text())
    assert [(row["method"], row["steps"], row["seed"]) for row in rows][:2] == [("teacher", 3, 8), ("fs-dfm", 2, 8)]
    assert json.loads((home / "report" / "frontier.json").read_text())["samples"] == 3
    before = {p.name for p in (home / "report" / "cells").iterdir()}
    assert main(["report", "main", str(home)]) == 0
    found = json.loads((home / "report" / "main.json").read_text())
    assert (found["samples"], found["seed"]) == (3, 8)
    assert [c["name"] for c in found["columns"]][3:] == ["at_2", "at_3", "at_1024"]
    assert {p.name for p in (home / "report" / "cells").iterdir()} == before  # nothing was sampled again


def test_the_judge_of_the_last_measure_is_found_after_a_move(
    report_home: Path, own_judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, name in (
        (report_home / "fs-dfm-uniform", "student"),
        (report_home / "tokens", "tokens"),
        (own_judge, "judge"),
    ):
        shutil.copytree(place, Path("w", name))
    few = ["--steps", "2", "--device", "cpu"]
    assert main(["report", "measure", "w", "--samples", "4", "--judges", "w/judge", "--world", "", *few]) == 0
    Path("w").rename("ww")
    assert main(["report", "main", "ww", *few]) == 0
    (judge,) = json.loads(Path("ww/report/main.json").read_text())["judge_names"]
    assert judge.startswith("inhouse")
    shutil.rmtree("ww/judge")
    capsys.readouterr()
    for name in ("main", "measure"):
        assert main(["report", name, "ww", *few]) == 2
        assert capsys.readouterr().err.endswith("(it is of the last measure: --judges names others)\n")
    assert main(["report", "main", "ww", "--judges", "w/judge", *few]) == 2
    assert "last measure" not in capsys.readouterr().err


def test_frontier(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "frontier", "--steps", "2", "--temperatures", "0.7,1.0,1.3", "--draws", "20")
    assert len(found["points"]) == 4 * 3
    assert found["target"]["entropy_bits"] > 0
    control = next(row for row in found["rows"] if row["method"] == "control")
    assert control["at_own"] == "control"
    for row in ours(found):
        for name in ("ratio_at_own_entropy", "bigram_ratio_over_overlap"):
            assert row["method"] == "control" or row[name] is None or row[name] > 0
    for name in ("frontier", "frontier-bigrams"):
        assert (out / f"{name}.svg").read_text().startswith("<svg")
    missing = table(report_home, out, "frontier", "--steps", "2", "--temperatures", "1.0", "--control", "nobody")
    assert any("the control is fs-dfm" in note for note in missing["notes"])


def test_frontier_with_a_unigram_bias_and_two_judges(report_home: Path, out: Path) -> None:
    few = ["--steps", "2", "--temperatures", "0.8,1.0,1.2", "--draws", "20", "--judges", "world:full"]
    found = table(report_home, out, "frontier", *few, "--unigram", "control", "--against", "fs-dfm")
    second = json.loads((out / "frontier-judge-2.json").read_text())
    name = "control + unigram bias"
    assert [row["method"] for row in ours(found)] == ["teacher", "fs-dfm", "control", name, "ts-dfm"]
    biased = next(row for row in found["rows"] if row["method"] == name)
    assert biased["control_method"] == "control"
    fit = biased["unigram"]
    assert fit["kl_after"] <= fit["kl_before"]
    assert fit["kl_after"] == min(fit["kl_rounds"])
    assert any("KL of its tokens" in note for note in found["notes"])
    keys = [load_cell(path).key for path in (out / "cells").glob("control-uniform-2-*.json")]
    assert {key["seed"] for key in keys if key["samples"] == 16} & {0} == set()  # fitted to other texts
    student = next(row for row in found["rows"] if row["method"] == "ts-dfm")
    assert set(student["judges"]) == set(found["judge_names"]) == {found["judge"], second["judge"]}
    assert set(student["against"]) == {name, "fs-dfm"}
    assert "ratio_over_overlap" in student["judges"][second["judge"]]["against"]["fs-dfm"]
    for one, two in zip(ours(found), ours(second), strict=True):
        assert one["entropy_bits"] == two["entropy_bits"]
        assert one["ppl"] != two["ppl"]
        assert two["ppl"] == two["judges"][second["judge"]]["ppl"]
    assert [p["entropy_bits"] for p in found["points"]] == [p["entropy_bits"] for p in second["points"]]
    against = json.loads((out / "frontier-against.json").read_text())
    assert [column["name"] for column in against["columns"]][3:] == [name, "fs-dfm"]
    assert (out / "frontier-judge-2-bigrams.svg").read_text().startswith("<svg")


def test_mauve(report_home: Path, own_judge: Path, tmp_path: Path) -> None:
    words = ["--steps", "2", "--samples", "16", "--judges", str(own_judge), "--draws", "20"]
    found = table(report_home, tmp_path, "mauve", *words)
    assert [row["method"] for row in found["rows"]] == ["teacher", "fs-dfm", "control", "ts-dfm", "held-out text"]
    for row in found["rows"]:
        low, high = row["mauve_interval"]
        assert 0 <= low <= row["mauve"] <= high <= 1
    assert found["clusters"] == 2
    assert found["samples"] == 16
    assert any("2 clusters of 16 and 16 texts" in note for note in found["notes"])
    assert not any("too high" in note for note in found["notes"])  # a row is a whole story


def test_mauve_says_how_near_its_two_held_out_sets_are(report_home: Path, tmp_path: Path) -> None:
    words = ["--corpus", f"{report_home}/corpus", "--out", f"{tmp_path}/tokens", "--vocab-size", "400"]
    assert main(["tokens", *words, "--length", "16", "--layout", "packed", "--workers", "1"]) == 0
    rows = TokenRows(tmp_path / "tokens", "valid")
    (note,) = nearness(rows, len(rows) // 2)
    assert note.startswith("held-out text may stand too high: its rows lie 1.0 rows from those it is compared with")
    assert f"lie {len(rows) / 32:.1f} rows" in nearness(rows, 16)[0]
    assert nearness(TokenRows(report_home / "tokens", "valid"), 16) == []


def test_threshold(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "threshold", "--steps", "2")
    assert [(row["tau"], row["init"]) for row in ours(found)] == [(0.1, "FS-DFM")]
    starred = [row for row in found["rows"] if row.get("paper") and row["marks"]]
    assert {(row["tau"], row["init"]) for row in starred} == {(0.02, "DFM"), (0.02, "FS-DFM")}


def test_candidates(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "candidates", "--steps", "2", "--k", "1,3", "--navigate.tau", "0")
    rows = ours(found)
    assert [row["k"] for row in rows] == ["no guidance", 1, 3]
    assert [row["compass_calls"] for row in rows] == [0.0, 4.0, 8.0]  # two steps of K candidates and a safeguard
    assert {row["method"] for row in rows} == {"fs-dfm"}


def test_policy(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "policy", "--steps", "2,8", "--navigate.k", "2")
    assert [row["policy"] for row in ours(found)][:4] == ["none", "sequence", "token", "sequence-to-token"]
    quoted = [row for row in found["rows"] if row.get("paper")]
    assert {row["steps"] for row in quoted} == {8}


def test_policy_in_blocks(report_home: Path, out: Path) -> None:
    """Blocks concern the sequence phase: other rows are as without, and are not made again."""
    few = ("--steps", "2", "--navigate.k", "2")
    whole, blocks = (ours(table(report_home, out, "policy", *few, *more)) for more in ((), ("--navigate.blocks", "3")))
    calls = [[row["compass_calls"] for row in rows[:4]] for rows in (whole, blocks)]
    assert calls[0][0] == calls[1][0] == 0
    assert calls[1][2] == calls[0][2]
    assert calls[1][1] == 4 * calls[0][1] > 0  # K + 3K instead of K
    assert whole[2]["ppl"] == blocks[2]["ppl"]


def test_policy_against_the_temperature_curve_under_two_judges(report_home: Path, out: Path) -> None:
    few = ["--steps", "2", "--navigate.k", "2", "--temperatures", "0.5,1.0,2.0", "--judges", "world:full"]
    found = table(report_home, out, "policy", *few)
    blind, *guided = ours(found)
    first, second = found["judge_names"]
    assert "ratio_at_own_entropy" not in blind
    for row in guided:
        for name in (first, second):
            assert row["judges"][name]["ratio_at_own_entropy"] > 0
        assert row["ratio_at_own_entropy"] == row["judges"][first]["ratio_at_own_entropy"]
        assert row[f"ppl {second}"] == row["judges"][second]["ppl"] != row["ppl"]
    assert [c["name"] for c in found["columns"]].count("at_own") == 1
    assert any("without guidance" in note for note in found["notes"])


def test_refinement(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "refinement", "--steps", "4")
    by_time = {row["when"]: row for row in ours(found)}
    assert by_time["generation"]["steps"] == 4
    assert 0 <= by_time["generation"]["accept"] <= 1
    assert by_time["generation"]["replaced_share"] == pytest.approx(by_time["generation"]["replaced"] / 48)
    assert by_time["training"]["method"] == "ts-dfm"


def test_diversity(report_home: Path, out: Path) -> None:
    few = ["--times", "0,0.9", "--midpoints", "2", "--completions", "3", "--steps", "8"]
    early, late = ours(table(report_home, out, "diversity", *few))
    assert (early["method"], early["t_mid"], late["t_mid"]) == ("ts-dfm", 0.0, 0.9)
    assert late["edit_distance"] < early["edit_distance"]
    assert late["self_bleu"] > early["self_bleu"]
    again = ours(table(report_home, out, "diversity", *few))
    assert again == [early, late]


def test_compass_table_leaves_the_collected_validations_alone(report_home: Path, out: Path) -> None:
    (out / "compass.json").write_text("{}")
    found = table(report_home, out, "compass", file="compass-table")
    assert (out / "compass.json").read_text() == "{}"
    validation = json.loads((report_home / "compass-uniform" / "validation.json").read_text())
    row = next(row for row in found["rows"] if row["what"] == "accuracy, token_repeat")
    assert row["uniform_value"] == validation["accuracy"]["token_repeat"]
    assert row["uniform_paper"] == "98.8%"


def test_overhead(report_home: Path, out: Path) -> None:
    rows = ours(table(report_home, out, "overhead"))
    assert [row["method"] for row in rows] == ["fs-dfm", "control", "ts-dfm"]
    assert rows[0]["ratio"] == 1.0
    assert all(row["ms"] > 0 for row in rows)


def test_prefix_scores_the_continuation_alone(report_home: Path, tmp_path: Path) -> None:
    found = table(report_home, tmp_path, "prefix", "--steps", "2", "--share", "0.5")
    held_out = next(row for row in found["rows"] if row["method"] == "held-out text")
    assert (held_out["accuracy"], held_out["valid"]) == (1.0, 1.0)
    cells = [load_cell(path) for path in (tmp_path / "cells").glob("fs-dfm*.json")]
    cell = next(cell for cell in cells if cell.prefixes)
    judge = WorldJudge(world_named("small"))
    whole, part = judge.score(cell.texts), judge.score(cell.texts, prefixes=cell.prefixes)
    assert all(a.nll > b.nll and a.tokens > b.tokens for a, b in zip(whole, part, strict=True))
    row = next(row for row in ours(found) if row["method"] == "fs-dfm")
    assert row["nll"] == pytest.approx(sum(score.nll for score in part) / len(part))
    assert all(text.startswith(prefix) for text, prefix in zip(cell.texts, cell.prefixes or [], strict=True))
    assert 0 <= row["accuracy"] < 1


def test_scaling(report_home: Path, out: Path) -> None:
    found = table(report_home, out, "scaling", "--steps", "2")
    sizes = [row["parameters"] for row in ours(found)]
    assert sizes == sorted(sizes)
    assert {row["parameters"] for row in found["rows"] if row.get("paper")} == {170_000_000, 1_300_000_000}


def test_collapsed_rows_are_marked_in_the_tables(report_home: Path, tmp_path: Path) -> None:
    """At temperature 0 a barely trained student writes one token over and over."""
    cold = ["--steps", "2", "--temperature", "0"]
    row = ours(table(report_home, tmp_path, "main", *cold))[1]
    assert row["entropy_bits_2"] < 3.0
    assert row["collapsed_2"]
    assert row["marks"] == ["at_2"]
    assert "†" in (tmp_path / "main.md").read_text()
    assert "collapsed" in json.loads((tmp_path / "main.json").read_text())["notes"][-3]


def test_a_command_makes_itself_again() -> None:
    made = CandidatesSettings(
        runs=(Path("a b"), Path("c")),
        k=(1, 4),
        world="",
        judges=("hub:x,y", "smollm2"),
        navigate=NavigateSettings(tau=0.0),
    )
    words = shlex.split(command_line("report candidates", made))
    assert words[:3] == ["tsdfm", "report", "candidates"]
    assert read("report candidates", VERBS["report candidates"], words[3:]) == made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "main", "nowhere"], "no folder at nowhere"),
        (["report", "main"], "missing setting 'runs'"),
        (["report", "mian"], "did you mean"),
        (["report", "main", "{home}", "--world", ""], "no judge for these texts"),
        (["report", "threshold", "{home}/fs-dfm-uniform"], "navigated midpoints"),
        (["report", "compass", "{home}/fs-dfm-uniform"], "no validated compass"),
        (["report", "overhead", "{home}/teacher-uniform"], "no student in"),
        (["report", "prefix", "{home}", "--prefix-tokens", "900"], "longer than the prefix"),
        (["report", "diversity", "{home}", "--completions", "1"], "completions must be at least 2"),
        (["report", "frontier", "{home}", "--unigram", "nobody"], "give --unigram one of teacher, fs-dfm"),
        (["report", "policy", "{home}", "--temperatures", "0.8,-1"], "temperatures must be above 0"),
        (["report", "candidates", "{home}", "--temperatures", "0.8,nan"], "temperatures must be above 0"),
        (["report", "frontier", "{home}", "--temperatures", "0,1"], "temperatures must be above 0"),
        (["report", "main", "{home}", "--steps", "0"], "steps must be from 1 to 1,000,000"),
        (["report", "candidates", "{home}", "--steps", "0"], "steps must be from 1 to 1,000,000"),
        (["report", "mauve", "{home}"], "MAUVE needs the features of a network"),
        (["report", "mauve", "{home}", "--clusters", "1"], "clusters must be at least 2"),
    ],
)
def test_mistakes(words: list[str], said: str, report_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.format(home=report_home) for word in words]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("kind", [CandidatesSettings, PolicySettings, FrontierSettings])
@pytest.mark.parametrize("bad", [-1.0, 0.0, float("nan"), float("inf")])
def test_temperatures_are_refused_before_anything_is_sampled(kind: type[Any], bad: float) -> None:
    with pytest.raises(UserError, match="temperatures must be"):
        kind(runs=(Path("x"),), temperatures=(0.8, bad))
    assert kind(runs=(Path("x"),), temperatures=(0.8,)).temperatures == (0.8,)


def test_every_table_has_its_maker_and_its_command() -> None:
    for name in TABLES:
        verb = VERBS[f"report {name}"]
        maker = load(f"tsdfm.report.commands.{TABLES[name].run}")
        assert verb.run == "tsdfm.report.desk:run"
        assert get_type_hints(maker)["settings"] is load(verb.settings)
