"""`tsdfm report answers`: pass@k from the very texts, by steps, beside chance and the paper; and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training import many_step
from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.store import read_documents
from tsdfm.corpus.sums import judge, read
from tsdfm.judges.answers import by_commonest, by_histogram, equations, number_in
from tsdfm.report.cells import load_cell
from tsdfm.report.commands.answers import COMMONEST, HISTOGRAM, Answered, cells, gaps
from tsdfm.report.problems import Marks, by_sums
from tsdfm.report.runs import TrainedRun
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

FEW = ["--steps", "2", "--teacher-steps", "2,3", "--n", "4", "--k", "1,2,4", "--device", "cpu"]
SUMS = [{"question": f"{a} and {b}?", "answer": f"<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
        for a in range(2, 9) for b in range(2, 9)]  # fmt: skip


def train_student(tokens: Path, teacher: Path, out: Path, seed: int = 0) -> Path:
    words = ["--tokens", str(tokens), "--init-from", str(teacher), "--out", str(out), "--loop.seed", str(seed)]
    words += ["--loop.steps", "2", "--loop.batch", "8", "--loop.device", "cpu", "--optim.warmup", "1"]
    assert main(["train", "fs-dfm", *words, "--eval-rows", "4"]) == 0
    return out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's folder on the world of sums: two teachers that differ by their seed, and a student."""
    home = tmp_path_factory.mktemp("answers")
    made = make_corpus(CorpusSettings(out=home / "corpus", name="sums:tiny", limit=200, valid=0.05))
    tokens = make_tokens(
        TokensSettings(corpus=made, out=home / "tokens", vocab_size=400, length=58, layout="prompt", workers=1)
    )
    many_step("dfm", tokens, home / "teacher-uniform", steps=12)
    train_student(tokens, home / "teacher-uniform", home / "fs-dfm-uniform")
    return home


@pytest.fixture(scope="module")
def table(home: Path) -> dict[str, Any]:
    assert (
        main(["report", "answers", str(home), *FEW, "--problems", "6", "--of", "fs-dfm", "--against", "teacher"]) == 0
    )
    return json.loads((home / "report/answers.json").read_text())


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if "runs" in row]


def test_figures_are_those_of_the_texts(home: Path, table: dict[str, Any]) -> None:
    """Every choice of k answers, by hand; the exact judge says what is right."""
    documents = {one.prompt: one for one in read_documents(home / "corpus", "valid")}
    cells = {(cell.key["method"], cell.steps): cell for cell in map(load_cell, (home / "report/cells").glob("*.json"))}
    assert [(row["method"], row["steps"]) for row in rows_of(table)] == [("teacher", 2), ("teacher", 3), ("fs-dfm", 2)]
    for row in rows_of(table):
        cell = cells[row["method"], row["steps"]]
        assert len(cell.texts) == 6 * 4
        right, follows = list[list[bool]](), list[bool]()
        for p in range(6):
            asked = cell.prefixes[4 * p].removesuffix("\n")  # type: ignore[index]
            said = [judge(asked, text[len(asked) + 1 :]) for text in cell.texts[4 * p : 4 * p + 4]]
            assert asked in documents
            right.append([one.right for one in said])
            follows += [one.follows for one in said]
        for k in (1, 2, 4):
            each = [sum(any(pick) for pick in combinations(one, k)) / len([*combinations(one, k)]) for one in right]
            assert row[f"pass@{k}"] == pytest.approx(sum(each) / 6)
        assert row["follows"] == pytest.approx(sum(follows) / 24)
        assert row["exact@4"] <= row["pass@4"]
    assert not any(row.get("paper") for row in table["rows"])  # the paper's problems are others
    assert (table["problems"], table["answers_a_problem"]) == (6, 4)


def test_chance_stands_in_the_table(home: Path, table: dict[str, Any]) -> None:
    known = [number_in(one.text) for one in read_documents(home / "corpus", "train")]
    firsts = dict[str, str]()  # of every sum, and six of them evenly spread
    for one in read_documents(home / "corpus", "valid"):
        firsts.setdefault(str(read(one.prompt)), one.text)
    assert len(firsts) > 6
    asked = [number_in([*firsts.values()][i * len(firsts) // 6]) for i in range(6)]
    rows = {row["method"]: row for row in table["rows"]}
    for k in (1, 2, 4):
        for name, law in ((HISTOGRAM, by_histogram), (COMMONEST, by_commonest)):
            wanted = law(known, asked, k)  # type: ignore[arg-type]
            assert rows[name][f"pass@{k}"] == pytest.approx(sum(wanted) / 6)


def test_every_sum_is_asked_once_before_any_is_asked_twice(home: Path) -> None:
    prompts = [one.prompt for one in read_documents(home / "corpus", "valid")]
    every = [str(read(prompt)) for prompt in prompts]
    for most in (1, 5, len(set(every)), len(set(every)) + 2, len(every)):
        picks = by_sums(prompts, most)
        assert picks == sorted(set(picks))
        assert len(picks) == most
        assert len({every[i] for i in picks}) == min(most, len(set(every)))


def test_differences_are_paired(home: Path, table: dict[str, Any]) -> None:
    found = json.loads((home / "report/answers-differences.json").read_text())
    ours = {(row["method"], row["steps"]): row for row in rows_of(table)}
    assert [row["against"] for row in found["rows"]] == ["teacher, 2 steps", "teacher, 3 steps"]
    for row, at in zip(found["rows"], (2, 3), strict=True):
        gap = ours["fs-dfm", 2]["pass@4"] - ours["teacher", at]["pass@4"]
        assert row["pass@4"] == pytest.approx(gap)


def test_runs_that_differ_by_their_seed_are_one_row(home: Path, table: dict[str, Any], tmp_path: Path) -> None:
    other = many_step("dfm", home / "tokens", tmp_path / "teacher-uniform", steps=12, seed=1)
    words = [
        str(home / "teacher-uniform"),
        str(other),
        "--tokens",
        str(home / "tokens"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["report", "answers", *words, *FEW, "--problems", "6"]) == 0
    both = rows_of(json.loads((tmp_path / "out/answers.json").read_text()))
    assert [row["method"] for row in both] == ["teacher, 2 runs"] * 2
    first = next(row for row in rows_of(table) if (row["method"], row["steps"]) == ("teacher", 2))
    assert both[0]["pass@1"] == pytest.approx(sum(one["pass@1"] for one in both[0]["runs"]) / 2)
    assert both[0]["runs"][0]["pass@1"] == pytest.approx(first["pass@1"])
    about = json.loads((tmp_path / "out/answers.json").read_text())["notes"][0]
    assert "intervals are over problems and runs" in about
    assert "intervals are over problems;" in table["notes"][0]


def test_runs_of_other_settings_have_rows_of_their_own(home: Path, tmp_path: Path) -> None:
    """They are named as in other tables; what started from other seeds is the same, from other settings is not."""
    tokens, out = home / "tokens", tmp_path / "out"
    for name, steps in (("seed-1", 12), ("shorter", 6)):
        teacher = many_step("dfm", tokens, tmp_path / name / "teacher-uniform", steps=steps, seed=1)
        train_student(tokens, teacher, tmp_path / name / "fs-dfm-uniform", seed=1)
    again = [str(home), str(tmp_path / "seed-1"), str(tmp_path / "shorter")]
    words = ["--tokens", str(tokens), "--out", str(out), *FEW, "--problems", "6"]
    assert main(["report", "answers", *again, *words, "--of", "fs-dfm", "--against", "teacher"]) == 0
    rows = rows_of(json.loads((out / "answers.json").read_text()))
    methods, places = ("teacher", "fs-dfm"), (home, tmp_path / "shorter")
    first, other = ([f"{name} [{place.name}/{name}-uniform]" for name in methods] for place in places)
    told = [(row["method"], row["steps"]) for row in rows]
    assert told == [*((f"{first[0]}, 2 runs", at) for at in (2, 3)), *((other[0], at) for at in (2, 3)),
                    (f"{first[1]}, 2 runs", 2), (other[1], 2)]  # fmt: skip
    differ = json.loads((out / "answers-differences.json").read_text())["rows"]
    assert {row["method"] for row in differ} == {first[1], other[1]}
    assert {row["against"] for row in differ} == {
        f"{name}, {at} steps" for name in (first[0], other[0]) for at in (2, 3)
    }


def test_a_run_that_is_named_twice_is_one(home: Path, tmp_path: Path) -> None:
    words = ["--tokens", str(home / "tokens"), "--out", str(tmp_path / "out"), *FEW, "--problems", "2"]
    assert main(["report", "answers", str(home), str(home / "fs-dfm-uniform"), *words]) == 0
    found = json.loads((tmp_path / "out" / "answers.json").read_text())["rows"]
    assert not [row for row in found if "runs" in row["method"]]


def test_a_row_is_not_compared_with_itself(home: Path, tmp_path: Path) -> None:
    words = ["--tokens", str(home / "tokens"), "--out", str(tmp_path / "out"), *FEW, "--problems", "2"]
    assert main(["report", "answers", str(home), *words, "--of", "fs-dfm", "--against", "fs-dfm"]) == 0
    assert not (tmp_path / "out" / "answers-differences.json").exists()


def test_intervals_are_over_problems_and_runs() -> None:
    """Two runs of which one solves nothing and one all: the mean is far from sure, however many the problems."""
    one, all_ = ([Marks(4, np.full(50, right), np.zeros(50)).passes(1)] for right in (0, 4))
    assert cells("@1", [*one, *all_])["pass@1_interval"] == [0.0, 1.0]
    assert cells("@1", all_)["pass@1_interval"] == [1.0, 1.0]


def test_differences_are_run_by_run_where_folders_are_the_same() -> None:
    def answered(right: dict[str, list[int]]) -> Answered:
        marks = [Marks(4, np.array(each), np.zeros(2)) for each in right.values()]
        return [TrainedRun(Path(home) / "x", {}) for home in right], marks

    mine = answered({"seed-0": [4, 2], "seed-1": [2, 0]})
    assert [gap.tolist() for gap in gaps(mine, answered({"seed-0": [2, 2], "seed-1": [0, 0]}), 1)] == [
        [0.5, 0.0],
        [0.5, 0.0],
    ]
    assert [gap.tolist() for gap in gaps(mine, answered({"seed-0": [0, 1]}), 1)] == [[0.75, 0.0]]


def test_the_same_problems_of_tokens_made_again_are_not_answered_twice(
    home: Path, table: dict[str, Any], tmp_path: Path
) -> None:
    """Pipelines that differ by their seed make the same tokens, each in a folder of its own."""
    words = {"corpus": home / "corpus", "vocab_size": 400, "length": 58, "layout": "prompt", "workers": 1}
    again = make_tokens(TokensSettings(**words, out=tmp_path / "tokens"))
    before = {path: path.stat().st_mtime_ns for path in (home / "report/cells").iterdir()}
    asked = ["report", "answers", str(home), "--tokens", str(again), "--out", str(home / "report"), *FEW]
    assert main([*asked, "--problems", "6"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (home / "report/cells").iterdir()} == before


def test_problems_of_a_file_and_the_papers_table(home: Path, tmp_path: Path) -> None:
    """Numbers decide, equations are the stricter measure; a problem that leaves no room counts as unsolved."""
    file = tmp_path / "test.jsonl"
    rows = [*SUMS[:3], {"question": "so " * 99, "answer": "#### 4"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        str(home / "teacher-uniform"),
        "--tokens",
        str(home / "tokens"),
        "--file",
        str(file),
        "--out",
        str(tmp_path),
    ]
    few = ["--steps", "2", "--teacher-steps", "2", "--n", "8", "--k", "1,8", "--device", "cpu"]
    assert main(["report", "answers", *words, *few]) == 0
    found = json.loads((tmp_path / "answers.json").read_text())
    assert found["problems"] == 4
    assert any("1 problems are longer than a row" in note for note in found["notes"])
    paper = [row for row in found["rows"] if row.get("paper")]
    assert [(row["method"], row["steps"]) for row in paper][-1] == ("ts-dfm", 8)
    assert next(row["pass@8"] for row in paper if row["method"] == "ts-dfm") == pytest.approx(0.0961)
    assert "holds" not in found["rows"][0]
    assert "4 problems, 8 answers each (1 longer than a row)" in found["title"]
    lines = [f'{row["question"]},"{row["answer"]}"' for row in SUMS[:3]]
    (tmp_path / "test.csv").write_text("\n".join(["question,answer", *lines]) + "\n")
    again = [str(tmp_path / "test.csv") if word == str(file) else word for word in words]
    assert main(["report", "answers", *again, *few[:-4], "--k", "1", "--device", "cpu"]) == 0
    other = json.loads((tmp_path / "answers.json").read_text())
    assert other["problems"] == 3
    assert not any(row.get("paper") for row in other["rows"])  # which the paper does not give for k = 1
    assert equations(SUMS[0]["answer"]) == [("2+2", "4")]
    assert number_in(SUMS[0]["answer"]) == Fraction(4)


def test_what_is_refused(home: Path, report_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.jsonl").write_text('{"question": "Why?", "answer": "So."}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"question": "so " * 99, "answer": "#### 4"}) + "\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    teacher, tokens = str(home / "teacher-uniform"), ["--tokens", str(home / "tokens")]
    same = {"corpus": home / "corpus", "tokenizer_files": home / "tokens", "layout": "prompt", "workers": 1}
    longer = make_tokens(TokensSettings(**same, length=60, out=tmp_path / "longer"))
    for words, said in (
        ([str(report_home)], "has no prompts, so no answers"),
        ([teacher, *tokens, "--k", "1,64"], "pass@64 needs as many answers"),
        ([teacher, *tokens, "--samples", "8"], "--samples is not for answers"),
        ([teacher, *tokens, "--file", str(tmp_path / "words.jsonl")], "has no number as the answer to 'Why?'"),
        ([teacher, *tokens, "--file", str(tmp_path / "long.jsonl")], "fits a row of 58 tokens"),
        ([teacher, *tokens, "--file", str(tmp_path / "none.jsonl")], "none.jsonl"),
        ([teacher, *tokens, "--file", str(tmp_path / "empty.jsonl")], "empty.jsonl holds no problem"),
        ([teacher, "--tokens", str(longer)], "has length 60, teacher-uniform has 58"),
    ):
        capsys.readouterr()
        assert main(["report", "answers", *words, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
