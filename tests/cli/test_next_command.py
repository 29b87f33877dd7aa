"""Stages one by one: each ends with what was made, where it lies and a next command, which works as it stands."""

import shlex
from pathlib import Path

import pytest

from tsdfm.cli import main
from tsdfm.store.manifest import read_manifest

LOOP = ["--loop.steps", "2", "--loop.batch", "4", "--optim.warmup", "1"]
NET = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2"]
EVAL = ["--eval-rows", "4", "--eval-times", "2"]


class Walk:
    """Runs commands, and the next ones that they name."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd
        self.said: list[str] = []

    def run(self, words: list[str]) -> list[str]:
        """The words of the next command."""
        assert main(words) == 0
        self.said = self.capfd.readouterr().err.splitlines()
        program, *after = shlex.split(self.said[-1].removeprefix("next: "))
        assert self.said[-1].startswith("next: ")
        assert program == "tsdfm"
        return after

    def made(self) -> str:
        """The line on what was made."""
        return self.said[-2]


def test_the_way_from_text_to_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    walk, home = Walk(capfd), tmp_path / "my runs"
    begin = ["corpus", "--name", "world:small", "--limit", "200", "--valid", "0.1", "--out", str(home / "corpus")]
    after = walk.run(begin)
    assert walk.made().startswith("corpus: ")
    assert walk.made().endswith(f" characters) → {home / 'corpus'}")
    assert after[0] == "tokens"
    after = walk.run([*after, "--length", "48", "--layout", "document", "--vocab-size", "500"])
    assert " tokens, " in walk.made()
    assert " rows held out; " in walk.made()
    tokens, after = home / "tokens", [*after, *NET, *LOOP, *EVAL]
    assert after[0] == "teacher"
    after = walk.run(after)
    assert "evaluating…" in walk.said
    assert any(line.startswith("step 2  elbo ") and "nats a token (lower is better)" in line for line in walk.said)
    assert walk.made().startswith("teacher: 2 steps, ")
    assert walk.made().endswith(f" nats a token (lower is better) → {home / 'teacher'}")
    assert after == [
        "student",
        "--tokens",
        str(tokens),
        "--init-from",
        str(home / "teacher"),
        "--out",
        str(home / "fs-dfm"),
    ]
    after = walk.run([*after, *LOOP, *EVAL])
    assert after == ["sample", str(home / "fs-dfm")]
    assert main([*after, "--n", "1", "--steps", "2"]) == 0

    given = ["--tokens", str(tokens), "--teacher", str(home / "teacher"), "--out", str(home / "compass")]
    after = walk.run(["compass", *given, *NET, *LOOP, "--negatives", "6"])
    assert " of pairs (higher is better) → " in walk.made()
    after = walk.run([*after, "--rows", "4", "--times", "4", "--pairs", "8", "--candidate-rows", "4"])
    assert walk.made().endswith(f"(higher is better) → {home / 'compass' / 'validation.json'}")
    after = walk.run([*after, *LOOP, *EVAL])
    assert after == ["sample", str(home / "ts-dfm")]

    after = walk.run(["judge", "train", "--tokens", str(tokens), "--out", str(home / "judge"), *NET, *LOOP])
    assert walk.made().startswith("judge: 2 steps, ")
    after = walk.run([*after, "--samples", "4", "--steps", "2", "--teacher-steps", "2"])
    assert walk.made().startswith("report measure: 3 cells of 4 texts, and held-out text → ")
    assert after == ["report", "page", str(home)]
    assert walk.run(["report", "main", str(home), "--samples", "4", "--steps", "2"]) == after
    tables = [line.partition(" → ")[2] for line in walk.said if line.startswith("report main")]
    assert tables == [str(home / "report" / name) for name in ("main-valid.md", "main-judge-2.md", "main.md")]
    after = walk.run(after)
    assert walk.made().endswith(f" → {home / 'report' / 'index.html'}")
    assert after == ["view", str(home)]

    (tmp_path / "card.md").write_text("# Mine\n")
    words = ["ship", str(home / "ts-dfm"), "--teacher", str(home / "teacher"), "--compass", str(home / "compass")]
    after = walk.run([*words, "--name", "mine", "--card", str(tmp_path / "card.md"), "--out", str(tmp_path / "mine")])
    assert walk.made().startswith("mine: student, teacher, compass, ")
    assert main(after) == 0


def test_a_corpus_with_prompts_is_laid_out_with_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    walk = Walk(capfd)
    after = walk.run(["corpus", "--name", "sums:tiny", "--limit", "60", "--out", str(tmp_path / "corpus")])
    after = walk.run([*after, "--length", "54", "--vocab-size", "400"])
    assert after[0] == "teacher"
    assert read_manifest(tmp_path / "tokens")["settings"]["layout"] == "prompt"
    after = walk.run([*after, *NET, *LOOP, *EVAL])
    assert after[0] == "student"
    after = walk.run([*after, *LOOP, *EVAL])
    assert after[:2] == ["sample", str(tmp_path / "fs-dfm")]
    assert after[2].startswith("--prompt=")  # one of the problems
    assert after[2].endswith("?")
    assert main([*after, "--n", "1", "--steps", "2"]) == 0
