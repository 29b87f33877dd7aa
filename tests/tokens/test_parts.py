"""Tokens in parts have the rows of one process, whatever their number and that of the corpus's parts."""

import hashlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing_parts import settings

from processes import Child
from tsdfm.corpus import CorpusSettings, SourceSettings
from tsdfm.corpus.run import run as make_corpus
from tsdfm.errors import UserError
from tsdfm.store.hashes import check_sizes, listed
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens import TokenRows, TokensSettings
from tsdfm.tokens import pack as pack_module
from tsdfm.tokens.run import run

SAME = ("rows", "characters", "documents", "dropped_tokens", "skipped_documents")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions and answers, as a corpus made at once and one made in three parts."""
    home, rng = tmp_path_factory.mktemp("home"), random.Random(0)
    (home / "texts").mkdir()
    for file in range(5):
        rows = [{"q": f"how many {i}?", "text": "so many " * rng.randint(0, 9) + str(i * file)} for i in range(80)]
        (home / "texts" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {"path": home / "texts", "prompt": "q", "valid": 0.2}
    make_corpus(CorpusSettings(**given, out=home / "one"))
    for part in ("2/3", "0/3", "1/3"):
        make_corpus(CorpusSettings(**given, out=home / "three", part=part))
    return home


def everything(folder: Path) -> list[Any]:
    found = []
    for split in ("train", "valid"):
        rows = TokenRows(folder, split)
        taken = rows.take(range(len(rows)))
        assert np.array_equal(np.stack([rows[i] for i in range(len(rows))]), taken)
        found += [taken.tolist(), rows.given(range(len(rows))).tolist()]
    about = read_manifest(folder)
    return [*found, *([about["splits"][s][name] for name in SAME] for s in ("train", "valid")), about["tokenizer"]]


@pytest.mark.parametrize("layout", ["packed", "document", "prompt"])
def test_parts_are_the_rows_of_one_process(home: Path, tmp_path: Path, layout: Any) -> None:
    length = 16 if layout == "packed" else 40
    whole = everything(run(settings(home / "one", tmp_path / "whole", layout=layout, length=length, shard_rows=50)))
    for corpus, count in (("one", 1), ("one", 4), ("three", 11)):
        out = tmp_path / f"{corpus}-{count}"
        for index in sorted(range(count), key=lambda i: i * 7 % count):
            assert not (out / "manifest.json").exists()
            run(settings(home / corpus, out, layout=layout, length=length, shard_rows=50, part=f"{index}/{count}"))
        assert everything(out) == whole
        check_sizes(out, listed(out))
        TokenRows(out).verify()
        assert not list(out.glob("part-*"))
    again = run(settings(home / "three", tmp_path / "three-11", layout=layout, length=length, shard_rows=50))
    assert again == tmp_path / "three-11"  # it is there already


def test_the_whole_in_one_process_is_what_it_was(tmp_path: Path) -> None:
    """The shards that commit c6be1ad wrote."""
    sources = (
        SourceSettings(name="world:small", limit=300, seed=1),
        SourceSettings(name="world:full", limit=200, weight=2),
    )
    corpus = make_corpus(CorpusSettings(out=tmp_path / "corpus", sources=sources, valid=0.05, stop="all"))
    out = run(TokensSettings(corpus=corpus, out=tmp_path / "out", tokenizer="byte", length=64, shard_rows=100))
    found = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in sorted(out.glob("*.bin"))))
    assert found.hexdigest() == "8b90da1e4af09d461b384687efdf2df50a8eb7e691d9fa71af74dc0f1cab253a"


def dies(corpus: Path, out: Path) -> None:
    """A part that is killed when it writes its third shard."""
    original, calls = pack_module._write_shard, 0

    def write(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    pack_module._write_shard = write
    run(settings(corpus, out, part="1/2", shard_rows=20))


def test_a_killed_part_goes_on_and_a_changed_shard_is_refused(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert Child(dies, home / "three", out).wait() == -signal.SIGKILL
    kept = out / "train-00001-of-00002-00001.bin"
    stamp, data = kept.stat().st_mtime_ns, kept.read_bytes()
    kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="was changed after it was written"):
        run(settings(home / "three", out, part="1/2", shard_rows=20))
    kept.write_bytes(data)
    os.utime(kept, ns=(stamp, stamp))
    for part in ("1/2", "0/2"):
        run(settings(home / "three", out, part=part, shard_rows=20))
    assert kept.stat().st_mtime_ns == stamp
    assert everything(out) == everything(run(settings(home / "one", tmp_path / "whole", shard_rows=99)))


def test_parts_side_by_side_make_one_tokenizer(home: Path, tmp_path: Path) -> None:
    """Three processes begin at once: one learns the vocabulary, the others wait for it."""
    out = tmp_path / "out"
    children = [Child(run, settings(home / "three", out, part=f"{index}/3", shard_rows=50)) for index in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert everything(out) == everything(run(settings(home / "one", tmp_path / "whole", shard_rows=99)))


def test_parts_that_hold_nothing_or_something_else(home: Path, tmp_path: Path) -> None:
    run(settings(home / "one", tmp_path / "out", length=10**6, part="0/2"))
    with pytest.raises(UserError, match="do not fill one row"):
        run(settings(home / "one", tmp_path / "out", length=10**6, part="1/2"))
    run(settings(home / "one", tmp_path / "out", part="0/2"))  # what failed left nothing in the way
    with pytest.raises(UserError, match="holds parts of 2"):
        run(settings(home / "one", tmp_path / "out", part="0/3"))
    with pytest.raises(UserError, match="unfinished run with other settings"):
        run(settings(home / "one", tmp_path / "out", length=32, part="0/2"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="in the way"):
        run(settings(home / "one", tmp_path / "mine", part="0/2"))
