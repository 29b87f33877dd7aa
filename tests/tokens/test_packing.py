"""Packing agrees with a plain reference, does not depend on the workers, and survives SIGKILL."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from packing_parts import packs, settings

from processes import Child
from tsdfm.corpus import CorpusSettings, read_split
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.store import read_documents
from tsdfm.errors import UserError
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens import TokenRows, load_tokenizer
from tsdfm.tokens import choose as choose_module
from tsdfm.tokens import pack as pack_module
from tsdfm.tokens.run import run


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "naïve", "café", "\U0001f600", "dog\r\n", "log", "<|endoftext|>"]
    return [" ".join(rng.choice(words, rng.integers(1, 30))) + f" {i}" for i in range(600)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts()))
    return make_corpus(CorpusSettings(out=folder / "out", path=folder / "a.jsonl", valid=0.1))


def shards(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.bin"))}


@pytest.fixture(scope="module", params=[("bpe", 8), ("byte", 128)], ids=["bpe", "byte"])
def packed(request, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A packed corpus and the rows of a shard: bytes are many tokens, and would be hundreds of small files."""
    kind, shard_rows = request.param
    return run(settings(corpus, tmp_path_factory.mktemp("packed"), tokenizer=kind, shard_rows=shard_rows)), shard_rows


@pytest.mark.parametrize("split", ["train", "valid"])
def test_packed_rows_are_the_documents_joined_by_end_of_text(corpus: Path, packed, split: str) -> None:
    out, shard_rows = packed
    tokenizer, rows = load_tokenizer(out), TokenRows(out, split)
    stream = [token for text in read_split(corpus, split) for token in [*tokenizer.encode(text), tokenizer.end_of_text]]
    full = len(stream) // 16
    assert rows.rows == len(rows) == full
    assert rows.take(range(full)).reshape(-1).tolist() == stream[: full * 16]
    about = read_manifest(out)["splits"][split]
    assert about["dropped_tokens"] == len(stream) - full * 16
    kept = tokenizer.decode_bytes(stream[: full * 16])
    assert rows.characters == sum(byte & 0xC0 != 0x80 for byte in kept) == rows.count_characters(rows.take(range(full)))
    assert len(about["shards"]) == -(-full // shard_rows) > 1
    rows.verify()


def test_document_rows_hold_one_document_each(corpus: Path, tmp_path: Path) -> None:
    out = run(settings(corpus, tmp_path / "out", layout="document", length=48))
    tokenizer, rows = load_tokenizer(out), TokenRows(out)
    fits = [t for t in read_split(corpus, "train") if len(tokenizer.encode(t)) + 2 <= 48]  # the anchor, and an end
    assert 0 < len(fits) < 540
    assert [tokenizer.documents(rows[i]) for i in range(len(rows))] == [[t] for t in fits]
    whole = rows.take(range(len(rows)))
    assert rows.anchor == 1
    assert (whole[:, 0] == tokenizer.end_of_text).all()
    assert (whole[:, 1] != tokenizer.end_of_text).all()
    assert (whole[:, -1] == tokenizer.end_of_text).all()
    about = read_manifest(out)["splits"]["train"]
    assert about["skipped_documents"] == about["documents"] - len(fits)
    assert rows.characters == sum(map(len, fits))


@pytest.mark.parametrize("layout", ["packed", "document"])
def test_the_result_does_not_depend_on_the_workers(corpus: Path, tmp_path: Path, monkeypatch, layout) -> None:
    monkeypatch.setattr("tsdfm.tokens.encode.CHUNK_DOCUMENTS", 7)
    made = [run(settings(corpus, tmp_path / str(n), workers=n, layout=layout)) for n in (1, 5)]
    assert shards(made[0]) == shards(made[1])
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize(
    ("point", "count", "layout"),
    [
        ("torn", 5, "packed"),
        ("renamed", 9, "document"),
        ("unrecorded", 7, "packed"),
        ("recorded", 6, "document"),
        ("recorded", 1, "packed"),
        ("finishing", 1, "packed"),
    ],
)
def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    corpus: Path, tmp_path: Path, monkeypatch, point: str, count: int, layout
) -> None:
    out = tmp_path / "killed"
    assert Child(packs, corpus, out, point, count, layout).wait() == -signal.SIGKILL
    assert not (out / "manifest.json").exists()
    done = json.loads((out / "progress.json").read_text())
    finished = [out / shard["file"] for split in ("train", "valid") for shard in done[split]["shards"]]
    stamps = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in finished}
    started = []

    def spy(folder, split, start=0, *more, **named):
        started.append((split, start))
        return read_documents(folder, split, start, *more, **named)

    monkeypatch.setattr(pack_module, "read_documents", spy)
    run(settings(corpus, out, layout=layout))
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in finished} == stamps
    if finished and point != "finishing":
        assert (
            started[0][1] == done["train"]["after"][0] > 0
        )  # no document before the last finished shard is read again
    clean = run(settings(corpus, tmp_path / "clean", layout=layout))
    assert shards(out) == shards(clean)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in clean.iterdir())
    same = ("key", "splits", "tokenizer", "vocab_size", "dtype")
    assert [read_manifest(out)[k] for k in same] == [read_manifest(clean)[k] for k in same]


def test_what_a_kill_after_the_manifest_left_goes(corpus: Path, tmp_path: Path) -> None:
    out = run(settings(corpus, tmp_path / "out", tokenizer="byte", shard_rows=128))
    names = sorted(p.name for p in out.iterdir())
    (out / "progress.json").write_text("{}")
    run(settings(corpus, out, tokenizer="byte", shard_rows=128))
    assert sorted(p.name for p in out.iterdir()) == names


def test_a_kill_from_outside_at_no_chosen_moment(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = Child(packs, corpus, out, "slow", 0, "packed")
    while len(list(out.glob("train-*.bin"))) < 4 and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 4 <= len(list(out.glob("*.bin"))) < 40
    run(settings(corpus, out))
    assert shards(out) == shards(run(settings(corpus, tmp_path / "clean")))


def test_other_settings_do_not_go_on_with_an_unfinished_run(corpus: Path, tmp_path: Path) -> None:
    assert Child(packs, corpus, tmp_path / "out", "torn", 3, "packed").wait() == -signal.SIGKILL
    with pytest.raises(UserError, match="unfinished run with other settings"):
        run(settings(corpus, tmp_path / "out", length=32))


def test_finished_folders_are_kept_and_never_overwritten(corpus: Path, tmp_path: Path) -> None:
    out = run(settings(corpus, tmp_path / "out"))
    before = (out / "manifest.json").stat().st_mtime_ns
    run(settings(corpus, out, workers=1))
    assert (out / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="other settings"):
        run(settings(corpus, out, vocab_size=301))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="in the way"):
        run(settings(corpus, tmp_path / "mine"))


def test_a_tokenizer_can_be_used_again(corpus: Path, tmp_path: Path) -> None:
    first = run(settings(corpus, tmp_path / "first"))
    again = run(settings(corpus, tmp_path / "again", tokenizer_files=first, length=24))
    assert TokenRows(again).fingerprint == TokenRows(first).fingerprint
    assert TokenRows(again).length == 24


def test_rows_that_cannot_be_are_the_users_error(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="do not fill one row"):
        run(settings(corpus, tmp_path / "a", length=10**6))
    with pytest.raises(UserError, match="no training document fits"):
        run(settings(corpus, tmp_path / "a", length=1, layout="document"))
    run(settings(corpus, tmp_path / "a"))  # what failed left nothing in the way
    with pytest.raises(UserError, match="not a corpus"):
        run(settings(tmp_path / "a", tmp_path / "b"))
    with pytest.raises(UserError, match="at least 257"):
        settings(corpus, tmp_path, vocab_size=100)


def test_a_large_vocabulary_takes_four_bytes(corpus: Path, tmp_path: Path, monkeypatch) -> None:
    small = run(settings(corpus, tmp_path / "small", tokenizer="byte", shard_rows=128))

    class Wide(choose_module.ByteTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.pieces = self.pieces[:256] + [b"x"] * 70_000 + [b""]
            self.end_of_text = len(self.pieces) - 1

    monkeypatch.setattr(choose_module, "ByteTokenizer", Wide)
    wide = TokenRows(run(settings(corpus, tmp_path / "wide", tokenizer="byte", shard_rows=128)))
    assert (wide.dtype.name, TokenRows(small).dtype.name) == ("uint32", "uint16")
    assert wide.take(range(len(wide))).max() == wide.end_of_text == 70_256


@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped"])
def test_damaged_shards_are_named(corpus: Path, tmp_path: Path, damage: str) -> None:
    out = run(settings(corpus, tmp_path / "out"))
    path = out / "train-00001.bin"
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[:-2])
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match=r"train-00001\.bin"):
        TokenRows(out).verify()


def test_a_split_that_is_not_there_or_empty(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 50)
    bare = make_corpus(CorpusSettings(out=tmp_path / "corpus", path=tmp_path / "a.txt", valid=0))
    out = run(settings(bare, tmp_path / "out"))
    with pytest.raises(UserError, match=r"valid split .* has no rows"):
        TokenRows(out, "valid")
    with pytest.raises(UserError, match="no split 'test'"):
        TokenRows(out, "test")
    with pytest.raises(UserError, match="holds no tokens"):
        TokenRows(bare)
