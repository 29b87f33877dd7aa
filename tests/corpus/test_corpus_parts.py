"""A corpus in parts has the documents of one process, whatever their number; a killed run goes on at the document."""

import hashlib
import json
import os
import random
import signal
from pathlib import Path

import pytest

from processes import Child
from tsdfm.cli import main
from tsdfm.corpus import CorpusSettings, SourceSettings, read_split
from tsdfm.corpus import write as write_module
from tsdfm.corpus.run import run
from tsdfm.corpus.source import Reader, read, units_of
from tsdfm.corpus.store import SplitWriter, read_documents, split_files
from tsdfm.errors import UserError
from tsdfm.store.manifest import read_manifest
from tsdfm.store.parts import Part, part_of

SPLITS = ("train", "valid")


def texts_in(folder: Path, files: int = 7, each: int = 40) -> Path:
    """Files of very different sizes, blank texts among theirs."""
    folder.mkdir()
    for f in range(files):
        rows = [{"text": f"{f} {i} " * (f * f + 1) if i % 9 else " "} for i in range(each)]
        (folder / f"{f}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "notes.log").write_text("not read, but part of the folder")
    (folder / os.fsdecode(b"\xff.txt")).write_text("of a file whose name is not UTF-8")
    return folder


def in_parts(settings: dict, count: int, seed: int = 0) -> Path:
    """All parts, in an order that is none."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    for index in order:
        assert not (settings["out"] / "manifest.json").exists()
        run(CorpusSettings(**settings, part=f"{index}/{count}"))
    return settings["out"]


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("source", ["files", "world"])
def test_parts_are_the_documents_of_one_process(tmp_path: Path, source: str, count: int) -> None:
    given = {"path": texts_in(tmp_path / "texts"), "valid": 0.2}
    if source == "world":
        given = {"name": "sums:small", "limit": 2500, "seed": 4, "valid": 0.2}
    whole = run(CorpusSettings(**given, out=tmp_path / "whole"))
    parts = in_parts({**given, "out": tmp_path / "parts"}, count)
    for split in SPLITS:
        assert list(read_documents(parts, split)) == list(read_documents(whole, split))
        total = read_manifest(whole)["splits"][split]["documents"]
        for start, stop in ((0, total), (total // 3, total // 2), (total - 1, total), (5, 6)):
            assert list(read_documents(parts, split, start, stop)) == list(read_documents(whole, split))[start:stop]
        assert list(read_documents(parts, split, 2, step=7)) == list(read_documents(whole, split))[2::7]
    one, many = read_manifest(whole), read_manifest(parts)
    assert [one[key] for key in ("inputs", "sources", "worlds")] == [
        many[key] for key in ("inputs", "sources", "worlds")
    ]
    assert {**one["settings"], "out": ""} == {**many["settings"], "out": ""}
    assert not list(parts.glob("part-*"))
    run(CorpusSettings(**given, out=parts, part=f"0/{count}"))  # there already
    assert run(CorpusSettings(**given, out=parts)) == parts  # and so it is for one process


def test_the_whole_in_one_process_is_what_it_was(tmp_path: Path) -> None:
    """The documents that commit c6be1ad wrote."""
    sources = (
        SourceSettings(name="world:small", limit=300, seed=1),
        SourceSettings(name="world:full", limit=200, weight=2),
    )
    out = run(CorpusSettings(out=tmp_path / "out", sources=sources, valid=0.05, stop="all"))
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "train.jsonl.gz", "valid.jsonl.gz"]
    lines = hashlib.sha256()
    for split in SPLITS:
        for document in read_documents(out, split):
            asked = {"prompt": document.prompt} if document.prompt else {}
            row = {**asked, "text": document.text, "origin": document.origin}
            lines.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    assert lines.hexdigest() == "dda62cbc2bff99968097f1a3a4d77c6a3a42da6fb2984bf2e306c98ffbcab9b5"


def mixture(home: Path) -> CorpusSettings:
    sources = (SourceSettings(path=home / "texts", weight=3, repeat=2), SourceSettings(name="world:small", limit=400))
    return CorpusSettings(out=home / "out", sources=sources, valid=0.1, stop="all")


def dies(settings: CorpusSettings, count: int) -> None:
    """Make a corpus in a process that is killed at its `count`-th document."""
    write_module.MEMBER = 3000
    original, written = SplitWriter.write, 0

    def write(self: SplitWriter, document: object) -> None:
        nonlocal written
        written += 1
        if written == count:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, document)

    SplitWriter.write = write
    run(settings)


def test_a_killed_corpus_goes_on_at_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MEMBER", 3000)
    texts_in(tmp_path / "texts")
    settings = mixture(tmp_path)
    clean = run(CorpusSettings(**{**vars(settings), "out": tmp_path / "clean"}))
    for count in (150, 300):
        assert Child(dies, settings, count).wait() == -signal.SIGKILL
    done = json.loads((tmp_path / ".out.tmp-corpus" / "progress.json").read_text())
    before = sum(written[1] for written in done["splits"].values())
    seen, original = [], SplitWriter.write
    monkeypatch.setattr(SplitWriter, "write", lambda self, document: (seen.append(document), original(self, document)))
    out = run(settings)
    assert before > 300  # of two runs that went on from one another
    assert len(seen) == sum(about["documents"] for about in read_manifest(out)["splits"].values()) - before
    for split in SPLITS:
        name = f"{split}.jsonl.gz"
        assert (out / name).read_bytes() == (clean / name).read_bytes()
        members = split_files(out, split)[0].members
        assert len(members) > 3
        whole = list(read_split(out, split))
        for _, first in members:
            assert list(read_split(out, split, first)) == whole[first:]
            assert list(read_split(out, split, first + 1)) == whole[first + 1 :]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "out", "texts"]


def test_a_killed_part_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MEMBER", 3000)
    given = {"path": texts_in(tmp_path / "texts"), "valid": 0.2, "out": tmp_path / "parts"}
    assert Child(dies, CorpusSettings(**given, part="1/2"), 60).wait() == -signal.SIGKILL
    assert (tmp_path / "parts" / ".part-00001-of-00002" / "progress.json").is_file()
    parts = in_parts(given, 2)
    whole = run(CorpusSettings(**{**given, "out": tmp_path / "whole"}))
    assert [list(read_split(parts, s)) for s in SPLITS] == [list(read_split(whole, s)) for s in SPLITS]
    assert not [path for path in parts.iterdir() if path.name.startswith(".")]


def test_a_reader_goes_on_from_any_place(tmp_path: Path) -> None:
    source = SourceSettings(path=texts_in(tmp_path / "texts"), limit=100, repeat=2)
    whole = list(read(source))
    assert len(whole) == 100
    for taken in (0, 1, 35, 36, 99, 100):
        reader = read(source)
        first = [next(reader) for _ in range(taken)]
        assert first + list(Reader(source, units_of(source), reader.place)) == whole


def test_parts_cover_everything_once() -> None:
    rng = random.Random(0)
    for count in (1, 2, 7, 40):
        sizes = [rng.choice([0, 1, 5, 1000]) for _ in range(23)]
        shares = [Part(index, count).share(sizes) for index in range(count)]
        assert [number for share in shares for number in share] == list(range(23))
        assert [number for index in range(count) for number in Part(index, count).of(23)] == list(range(23))
    even = [len(Part(index, 4).share([10] * 40)) for index in range(4)]
    assert even == [10] * 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--part", "two/3"], "part takes i/n, such as 0/8"),
        (["--part", "3/3"], "counts from 0: of 3 parts the last is 2/3"),
        (["--part", "0/0"], "counts from 0"),
        (["--part", "0/2", "--limit", "5"], "leave out limit, or part"),
        (["--part", "0/2", "--name", "fineweb-edu"], "cannot be read in parts"),
    ],
)
def test_parts_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    path = [] if "--name" in words else ["--path", str(texts_in(tmp_path / "texts"))]
    assert main(["corpus", "--out", str(tmp_path / "out"), *path, *words]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_parts_of_different_things_are_not_joined(tmp_path: Path) -> None:
    assert part_of(None) is None
    texts, out = texts_in(tmp_path / "texts"), tmp_path / "out"
    run(CorpusSettings(path=texts, out=out, valid=0.2, part="0/3"))
    with pytest.raises(UserError, match="holds parts of 3: give --part i/3"):
        run(CorpusSettings(path=texts, out=out, valid=0.2, part="0/4"))
    with pytest.raises(UserError, match="other settings or texts"):
        run(CorpusSettings(path=texts, out=out, valid=0.3, part="1/3"))
    with pytest.raises(UserError, match="in the way"):
        run(CorpusSettings(path=texts, out=out, valid=0.2))
    with pytest.raises(UserError, match="a mixture is made in one process"):
        run(CorpusSettings(**{**vars(mixture(tmp_path)), "part": "0/2"}))
    run(CorpusSettings(path=texts, out=tmp_path / "few", valid=1e-9, part="0/2"))
    with pytest.raises(UserError, match="run it without --part"):
        run(CorpusSettings(path=texts, out=tmp_path / "few", valid=1e-9, part="1/2"))
