"""`tsdfm judge score` and `tsdfm judge train` as a user meets them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from tsdfm.cli import main
from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import SMALL, render
from tsdfm.errors import UserError
from tsdfm.judges.texts import read_texts

STORIES = [render(SMALL.draw(random.Random(n))) for n in range(5)]


@pytest.mark.parametrize(
    ("name", "lines", "whole"),
    [
        ("made", True, False),
        ("made.json", True, False),
        ("made", False, True),
        ("made.txt", True, False),
        ("made.txt", False, True),
    ],
)
def test_a_file_of_another_name_is_read_by_what_it_holds(tmp_path: Path, name: str, lines: bool, whole: bool) -> None:
    """`tsdfm sample --out made` writes JSON lines whatever the name."""
    written = [json.dumps({"text": text, "seed": 0}) if lines else text for text in STORIES]
    (tmp_path / name).write_text("\n".join(written))
    assert read_texts(tmp_path / name).texts == (written if whole else STORIES)


def test_braces_in_a_txt_are_texts_unless_they_hold_one(tmp_path: Path) -> None:
    for line in ('{"name": "Leo"}', "{Leo}", '{"text": 3}'):
        (tmp_path / "made.txt").write_text(f"{line}\nMia\n")
        assert read_texts(tmp_path / "made.txt").texts == [line, "Mia"]


def test_scores_are_not_written_over_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "made.jsonl"
    texts.write_text(json.dumps({"text": STORIES[0]}) + "\n")
    before = texts.read_bytes()
    for word in ("--out", "--cache"):
        where = str(tmp_path / "." / "made.jsonl")
        assert main(["judge", "score", "--judge", "world:small", "--texts", str(texts), word, where]) == 2
        assert f"{word} would write over the texts" in capsys.readouterr().err
    assert texts.read_bytes() == before


def test_scoring_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: Path) -> None:
    good, bad, out = tmp_path / "good.jsonl", tmp_path / "bad.txt", tmp_path / "scores.json"
    good.write_text("".join(json.dumps({"text": text, "seed": 0}) + "\n" for text in STORIES))
    bad.write_text("\n\n".join(" ".join(sorted(text.split())) for text in STORIES))
    words = ["judge", "score", "--judge", "world:small", "--texts", str(good), "--texts", str(bad)]
    assert main([*words, "--tokenizer", str(documents), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["judge"] in shown.replace("\n", "")
    assert found["judge"].startswith("story-world:small:")
    assert "good.jsonl" in shown
    first, second = found["rows"]
    ppl = sum(judge(text, SMALL).perplexity for text in STORIES) / 5
    assert first["ppl"] == pytest.approx(ppl)
    assert first["ppl_interval"][0] < ppl < first["ppl_interval"][1]
    assert second["ppl"] > 10 * first["ppl"]
    nll = sum(-judge(text, SMALL).noisy_log_likelihood for text in STORIES)
    assert first["bits_per_char"] == pytest.approx(nll / math.log(2) / sum(map(len, STORIES)))
    assert len(found["scores"][str(good)]) == 5
    assert len((tmp_path / "scores.scores.jsonl").read_text().splitlines()) == 10


def test_prefixes_come_from_the_file(tmp_path: Path) -> None:
    path, out = tmp_path / "texts.jsonl", tmp_path / "o.json"
    rows = [{"text": STORIES[0], "prefix": STORIES[0][:9]}, {"text": STORIES[1]}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert main(["judge", "score", str(path), "--judge", "world:small", "--out", str(out)]) == 0
    scores = json.loads(out.read_text())["scores"][str(path)]
    assert scores[0]["characters"] == len(STORIES[0]) - 9
    assert scores[1]["characters"] == len(STORIES[1])


def test_training_by_command(documents: Path, tmp_path: Path) -> None:
    out, texts = tmp_path / "judge", tmp_path / "t.txt"
    net = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2"]
    loop = ["--loop.steps", "3", "--loop.batch", "4", "--loop.eval-every", "0", "--eval-rows", "4"]
    assert main(["judge", "train", "--tokens", str(documents), "--out", str(out), *net, *loop]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["stage"], manifest["finished"]) == ("judge", True)
    assert json.loads((out / "checkpoints" / "best.json").read_text())["metric"] == "nll"
    texts.write_text("\n".join(STORIES))
    assert main(["judge", "score", str(texts), "--judge", str(out), "--limit", "2"]) == 0


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, broken, other = tmp_path / "e.txt", tmp_path / "b.jsonl", tmp_path / "o.jsonl"
    empty.write_text("\n \n")
    broken.write_text('{"text": "a"}\n{"tex": "a"}\n')
    other.write_text('{"text": 3}\n')
    cases = ((tmp_path / "no.txt", "no file"), (empty, "no text"), (broken, "line 2"), (other, "must be strings"),
             (tmp_path / "a.csv", r"make a \.txt or \.jsonl file"))  # fmt: skip
    for path, said in cases:
        with pytest.raises(UserError, match=said):
            read_texts(path)
    assert main(["judge", "score", str(empty), "--judge", "world:small"]) == 2
    assert "holds no text" in capsys.readouterr().err
    assert main(["judge", "score", str(empty), "--judge", "world:small", "--limit", "0"]) == 2
