"""The recipes of prompts and answers, from text to table, with networks and trainings as small as they go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.judges.test_storyteller import write_storyteller
from tests.public.public_files import BLOCKS, HEADS, write_public

from training import many_step
from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.distil.start import is_new
from tsdfm.public.run import run as import_
from tsdfm.public.settings import ImportSettings
from tsdfm.recipes import read_recipe
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

NET = {"width": 32, "depth": 1, "heads": 2, "cond": 16}
LOOP = {"steps": 2, "batch": 4, "micro": 4, "device": "cpu", "compile": "false", "eval_every": 0, "save_every": 0}
ASKED = {"n": 8, "k": "[1, 8]", "steps": "[2]", "teacher_steps": "[2, 3]", "problems": 3, "device": "cpu"}


def shrunk(name: str, **more: Any) -> list[str]:
    """`--set` flags that make a recipe small."""
    recipe, values = read_recipe(name), dict[str, Any]()
    for entry in recipe.models:
        at = f"models.{entry.name}"
        values |= {f"{at}.loop.{word}": value for word, value in LOOP.items()}
        values |= {f"{at}.optim.warmup": 1, f"{at}.eval_rows": 4}
        values |= {f"{at}.net.{word}": value for word, value in NET.items()} if "net" in entry.values else {}
    if "compass" in recipe.names:
        few = {"pairs": 4, "rows": 2, "times": 2, "candidate_rows": 2, "device": "cpu"}
        values |= {"models.compass.negatives": 2, **{f"validate.{word}": value for word, value in few.items()}}
    values |= {f"report.answers.{word}": value for word, value in ASKED.items()}
    return [word for name, value in {**values, **more}.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plain text as rows, and problems in the fields of GSM8K."""
    home = tmp_path_factory.mktemp("text")
    made = make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=120, valid=0.1))
    tokens = make_tokens(TokensSettings(corpus=made, out=home / "tokens", vocab_size=300, length=32, workers=1))
    pairs = [(a, b) for a in range(2, 9) for b in range(2, 9)]
    lines = [{"question": f"{a} and {b}?", "answer": f"<<{a}+{b}={a + b}>>\n#### {a + b}"} for a, b in pairs]
    for name, some in (("train", lines[:40]), ("test", lines[40:])):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    return {"tokens": tokens, "train": home / "train.jsonl", "test": home / "test.jsonl"}


def table_of(out: Path) -> list[dict[str, Any]]:
    return list(json.loads((out / "report/answers.json").read_text())["rows"])


def rows_of(out: Path) -> list[tuple[str, int]]:
    return [(row["method"], row["steps"]) for row in table_of(out) if "runs" in row]


@pytest.mark.parametrize("name", ["sums_cpu", "sums_h200"])
def test_a_world_of_sums_from_problems_to_the_table(name: str, tmp_path: Path) -> None:
    flags = shrunk(name, **{"corpus.limit": 150, "corpus.valid": 0.1, "tokens.workers": 1})
    assert main(["pipeline", name, "--out", str(tmp_path), *flags]) == 0
    students = [(each, 2) for each in ("fs-dfm", "control", "ts-dfm", "ts-random")]
    assert rows_of(tmp_path) == [("teacher", 2), ("teacher", 3), *students]
    assert all({"holds", "follows"} <= row.keys() for row in table_of(tmp_path) if "runs" in row)
    assert not any(row.get("paper") for row in table_of(tmp_path))


def problems(text: dict[str, Path]) -> dict[str, Any]:
    return {"corpus.path": text["train"], "report.answers.file": text["test"], "tokens.length": 40, "tokens.workers": 1}


def test_gsm8k_from_plain_text_to_the_table(text: dict[str, Path], tmp_path: Path) -> None:
    """Fine-tuned from text, step-size weights of another student, a compass that never saw a problem."""
    more = {f"models.{name}.tokens": text["tokens"] for name in ("text", "compass", "fs-text")}
    flags = shrunk("gsm8k_small", **problems(text), **more, **{"tokens.tokenizer_files": text["tokens"]})
    assert main(["pipeline", "gsm8k_small", "--out", str(tmp_path), *flags]) == 0
    assert rows_of(tmp_path) == [(name, at) for name, at in [("teacher", 2), ("teacher", 3)]] + [
        (name, 2) for name in ("fs-dfm", "control", "ts-dfm")
    ]
    assert any(row.get("paper") for row in table_of(tmp_path))
    lines = (tmp_path / "ts-dfm-uniform/manifest.json", tmp_path / "text-uniform/manifest.json")
    asked, plain = (json.loads(path.read_text())["model"] for path in lines)
    assert (asked["prompted"], asked["length"], asked["anchor"]) == (True, 40, 1)
    assert (plain["prompted"], plain["length"], plain["anchor"]) == (False, 32, 0)


def test_gsm8k_from_a_causal_model(text: dict[str, Path], tmp_path: Path) -> None:
    more = {"start.source": write_storyteller(tmp_path / "storyteller"), "tokens.vocab_size": 300}
    flags = shrunk("gsm8k_cpu", **problems(text), **more)
    assert main(["pipeline", "gsm8k_cpu", "--out", str(tmp_path / "out"), *flags]) == 0
    students = [(each, 2) for each in ("fs-dfm", "control", "ts-dfm", "ts-random")]
    assert rows_of(tmp_path / "out") == [("teacher", 2), ("teacher", 3), *students]
    assert any(row.get("paper") for row in table_of(tmp_path / "out"))
    said = json.loads((tmp_path / "out/ts-dfm-uniform/manifest.json").read_text())["model"]
    assert said["prompted"]
    assert said["decoder"]


def test_gsm8k_from_public_checkpoints(text: dict[str, Path], tmp_path: Path) -> None:
    """The paper's recipe: a teacher and a student in the public layout, and a compass of plain text."""
    teacher, student = tmp_path / "dfm", tmp_path / "fs-dfm"
    for kind, run, part in (("dfm", teacher, ""), ("fs-dfm", student, "student_model")):
        folder = write_public(kind, tmp_path / f"public-{kind}")
        import_(ImportSettings(source=str(folder), out=run, heads=HEADS, part=part))
    corpus, compass = text["tokens"].parent / "corpus", tmp_path / "compass"
    rows = TokensSettings(corpus=corpus, out=tmp_path / "tokens", tokenizer_files=teacher, length=1024, workers=1)
    words = ["--tokens", str(make_tokens(rows)), "--teacher", str(teacher), "--out", str(compass), "--eval-rows", "4"]
    loop = ["--loop.steps", "1", "--loop.batch", "2", "--loop.device", "cpu", "--negatives", "2"]
    net = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2", "--net.cond", "16"]
    assert main(["compass", *words, *loop, *net]) == 0
    more = {"models.teacher.init_from": teacher, "models.ts-dfm.compass": compass, "student.steps_from": student}
    more |= {"tokens.tokenizer_files": teacher, "tokens.length": 64, "models.teacher.net.depth": BLOCKS}
    out = tmp_path / "out"
    flags = shrunk("gsm8k_1b3", **{**problems(text), **more})
    assert main(["pipeline", "gsm8k_1b3", "--out", str(out), *flags]) == 0
    assert [name for name, _ in rows_of(out)] == ["teacher", "teacher", "fs-dfm", "control", "ts-dfm"]
    assert read_manifest(out / "fs-dfm-uniform")["inputs"]["steps_from"]["path"] == str(student)
    taken, begun = load_weights(student, "model"), load_weights(out / "fs-dfm-uniform", "ema")
    new = [key for key in taken if is_new(key) and taken[key].ndim > 1]
    assert new
    assert all(torch.allclose(begun[key], taken[key], atol=1e-3) for key in new)  # two small steps away


def test_what_is_not_there_is_refused_before_anything_is_made(
    text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compass and the problems of the report are needed hours after the training began."""
    missing = {"corpus.path": text["train"], "report.answers.file": text["test"], "tokens.workers": 1}
    for name in ("models.teacher.init_from", "student.steps_from", "models.ts-dfm.compass", "report.answers.file"):
        words = shrunk("gsm8k_1b3", **{**missing, name: tmp_path / "nowhere"})
        assert main(["pipeline", "gsm8k_1b3", "--out", str(tmp_path / "out"), *words]) == 2
        error = capsys.readouterr().err.strip()
        assert f"{name.rpartition('.')[2]} says {tmp_path / 'nowhere'}, and there is nothing" in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "out").exists()
        missing[name] = text["test"]  # it is there, whatever it is


def test_step_size_weights_are_refused_where_they_do_not_fit(
    text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = many_step("dfm", text["tokens"], tmp_path / "dfm", steps=1)
    words = ["train", "fs-dfm", "--tokens", str(text["tokens"]), "--loop.device", "cpu", "--loop.steps", "1"]
    words += ["--loop.batch", "4", "--optim.warmup", "1", "--eval-rows", "4"]
    assert main([*words, "--init-from", str(teacher), "--out", str(tmp_path / "fs")]) == 0
    for start, other, said in (
        (tmp_path / "fs", tmp_path / "fs", "init_from is a student, leave it out"),
        (teacher, teacher, "has no step-size weights of this size"),
    ):
        capsys.readouterr()
        more = ["--init-from", str(start), "--steps-from", str(other), "--out", str(tmp_path / "no")]
        assert main([*words, *more]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "no").exists()
