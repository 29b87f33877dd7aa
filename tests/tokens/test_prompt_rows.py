"""Prompts and answers: from fields of a file to rows that say how much of them is given."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing_parts import packs, settings

from processes import Child
from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.store import read_documents
from tsdfm.engine.task import split
from tsdfm.errors import UserError
from tsdfm.store.files import read_json, write_json
from tsdfm.tokens.loader import Loader, with_numbers
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.run import run

WORDS = ("plums", "hats", "balls", "keys")


def lines(count: int) -> list[dict[str, Any]]:
    """Questions, each asked twice with another answer."""
    return [
        {"question": f"How many {WORDS[n % 4]} are {n} and one?", "answer": f"{n}+1, so {n + 1}{mark}"}
        for n in range(count)
        for mark in ("", "!")
    ]


def corpus_of(home: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked: dict[str, Any] = {"path": home / "sums.jsonl", "field": "answer", "prompt": "question", "valid": 0.2}
    return make_corpus(CorpusSettings(out=home / "corpus", **{**asked, **more}))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_of(tmp_path_factory.mktemp("prompts"), lines(60))


def test_documents_carry_their_prompts(corpus: Path) -> None:
    found = {split: list(read_documents(corpus, split)) for split in ("train", "valid")}
    asked = {(row["question"], row["answer"]) for row in lines(60)}
    assert {(one.prompt, one.text) for each in found.values() for one in each} == asked
    train, valid = ({one.prompt for one in found[split]} for split in ("train", "valid"))
    assert valid
    assert not train & valid  # answers to one prompt stay together
    again = make_corpus(CorpusSettings(**{**given_of(corpus), "out": corpus}))
    assert again == corpus


def given_of(corpus: Path) -> dict[str, Any]:
    return {"path": corpus.parent / "sums.jsonl", "field": "answer", "prompt": "question", "valid": 0.2}


def test_a_few_prompts_are_held_out_whole(tmp_path: Path) -> None:
    made = corpus_of(tmp_path, lines(3), valid=1e-6)
    train, valid = ([one.prompt for one in read_documents(made, split)] for split in ("train", "valid"))
    assert (len(train), len(valid)) == (4, 2)
    assert not set(train) & set(valid)


def test_rows_say_what_is_given(corpus: Path, tmp_path: Path) -> None:
    """End-of-text, the prompt with its newline, the answer, end-of-text to the end of the row."""
    tokens = run(settings(corpus, tmp_path / "tokens", layout="prompt", length=48))
    rows = TokenRows(tokens, "train")
    assert (rows.prompted, rows.anchor, rows.length) == (True, 1, 48)
    tokenizer, end = rows.tokenizer, rows.end_of_text
    documents = list(read_documents(corpus, "train"))
    assert len(rows) == len(documents)
    taken, given = rows.take(range(len(rows))), rows.given(range(len(rows)))
    for n, one in enumerate(documents):
        front = [end, *tokenizer.encode(one.prompt + "\n")]
        answer = [*tokenizer.encode(one.text), end]
        assert rows[n].tolist() == taken[n].tolist() == [*front, *answer, *[end] * (48 - len(front) - len(answer))]
        assert given[n].tolist() == [i < len(front) for i in range(48)]
        assert tokenizer.decode(rows[n][given[n]][1:]) == one.prompt + "\n"
    rows.verify()
    assert rows.characters == sum(len(one.prompt) + 1 + len(one.text) for one in documents)


def test_batches_have_what_is_given(corpus: Path, tmp_path: Path) -> None:
    rows = TokenRows(run(settings(corpus, tmp_path / "tokens", layout="prompt", length=48)), "train")
    loader = Loader(rows, 8, seed=1)
    batch = loader.at(3)
    assert batch.given is not None
    assert torch.equal(batch.given, torch.from_numpy(rows.given(loader.indices(3))))
    assert torch.equal(batch.known(1), batch.given)
    halves = split(batch, 4)
    assert torch.equal(torch.cat([part.given for part in halves]), batch.given)
    (hosted,) = with_numbers(loader, 3, torch.device("cpu"), 4)
    assert torch.equal(hosted.given, batch.given)
    plain = TokenRows(run(settings(corpus, tmp_path / "plain", layout="document", length=48)), "train")
    assert Loader(plain, 8, seed=1).at(0).given is None
    assert Loader(plain, 8, seed=1).at(0).known(1).tolist() == [True, *[False] * 47]
    assert np.array_equal(plain.given([0, 3]), np.arange(48) < np.ones((2, 1)))


def test_what_does_not_fit_is_skipped_and_counted(corpus: Path, tmp_path: Path) -> None:
    rows = TokenRows(run(settings(corpus, tmp_path / "whole", layout="prompt", length=48)), "train")
    sizes = (rows.take(range(len(rows))) != rows.end_of_text).sum(1) + 2  # the anchor, and one end
    fewer = run(settings(corpus, tmp_path / "fewer", layout="prompt", length=int(sizes.max()) - 1))
    assert 0 < len(TokenRows(fewer, "train")) == (sizes < sizes.max()).sum() < len(rows)
    about = read_json(fewer / "manifest.json")["splits"]["train"]
    assert about["skipped_documents"] == (sizes == sizes.max()).sum()
    with pytest.raises(UserError, match="no training document fits a row of 8 tokens"):
        run(settings(corpus, tmp_path / "short", layout="prompt", length=8))
    assert not (tmp_path / "short").exists()


def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    short = corpus_of(tmp_path / "short", [{"question": f"{n}?", "answer": f"{n}"} for n in range(100)])
    out = tmp_path / "killed"
    assert Child(packs, short, out, "recorded", 6, "prompt").wait() == -signal.SIGKILL
    assert not (out / "manifest.json").exists()
    made = [run(settings(short, place, layout="prompt")) for place in (out, tmp_path / "clean")]
    one, other = ({p.name: p.read_bytes() for p in place.glob("*.bin")} for place in made)
    assert len(one) > 4
    assert one == other


def test_what_is_refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.txt").write_text("One text.\n\nAnother.\n")
    (tmp_path / "half.jsonl").write_text('{"question": "Why?", "reply": "So."}\n')
    words = ["corpus", "--out", str(tmp_path / "no"), "--prompt", "question"]
    for more, said in (
        (["--path", str(tmp_path / "plain.txt")], "prompts come from jsonl, csv, parquet or the hub"),
        (["--path", str(tmp_path / "half.jsonl"), "--field", "answer"], "has no field 'answer'"),
        (["--path", str(tmp_path / "half.jsonl"), "--field", "reply", "--prompt", "asked"], "`prompt` names the one"),
        (["--name", "world:small", "--limit", "3"], "a world has no field"),
    ):
        assert main([*words, *more]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "no").exists()
    stories = make_corpus(CorpusSettings(out=tmp_path / "stories", name="world:small", limit=20))
    with pytest.raises(UserError, match="has no prompts: make it with --prompt FIELD"):
        run(settings(stories, tmp_path / "no", layout="prompt"))
    assert not (tmp_path / "no").exists()
    for layout in ("packed", "document", "prompt"):
        run(settings(corpus, tmp_path / layout, layout=layout, length=64))
        said = f"has prompts, which layout {layout} leaves out" in "".join(capsys.readouterr())
        assert said == (layout != "prompt")


def test_a_corpus_of_before_is_still_the_same(tmp_path: Path) -> None:
    """Its manifest does not know of prompts."""
    asked = CorpusSettings(out=tmp_path / "stories", name="world:small", limit=20)
    made = make_corpus(asked)
    manifest = read_json(made / "manifest.json")
    del manifest["settings"]["prompt"]
    write_json(made / "manifest.json", manifest)
    assert make_corpus(asked) == made
