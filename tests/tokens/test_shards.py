"""Shards that others made: written here byte by byte in their layouts, and read as the stream of tokens they are."""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import Child
from training import many_step
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.store.hashes import check_sizes, listed
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens import Loader, TokenRows, TokensSettings
from tsdfm.tokens.run import run

END, LENGTH = 256, 16


def documents(seed: int, count: int = 30) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(97, 123, rng.integers(1, 40)).tolist(), END] for _ in range(count)]


def flat(docs: list[list[int]]) -> list[int]:
    return [token for doc in docs for token in doc]


def datatrove(path: Path, docs: list[list[int]], kind: str = "H", metadata: bool = True) -> Path:
    """A .ds file, the ends of its documents, and the lines about it."""
    path = path.with_suffix(".ds")
    path.write_bytes(struct.pack(f"<{len(flat(docs))}{kind}", *flat(docs)))
    ends = [sum(map(len, docs[: i + 1])) for i in range(len(docs))] or [0]
    Path(f"{path}.index").write_bytes(struct.pack(f"<{len(docs)}Q", *ends[: len(docs)]))
    if metadata:
        Path(f"{path}.metadata").write_text(f"byte|{struct.calcsize(kind)}\n{ends[-1]}\n{ends[-1]} T")
    return path


def megatron(path: Path, docs: list[list[int]], code: int = 8) -> Path:
    kind = {1: "B", 4: "i", 5: "q", 8: "H"}[code]
    path = path.with_suffix(".bin")
    path.write_bytes(struct.pack(f"<{len(flat(docs))}{kind}", *flat(docs)))
    lengths, size, n = [len(doc) for doc in docs], struct.calcsize(kind), len(docs)
    pointers = [size * sum(lengths[:i]) for i in range(n)]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, n, n + 1)
    marks = struct.pack(f"<{n}i{n}q{n + 1}q", *lengths, *pointers, *range(n + 1))
    path.with_suffix(".idx").write_bytes(head + marks)
    return path


def llmc(path: Path, docs: list[list[int]], magic: int = 20240520, version: int = 1, kind: str = "H") -> Path:
    path, tokens = path.with_suffix(".bin"), flat(docs)
    head = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    path.write_bytes(head + struct.pack(f"<{len(tokens)}{kind}", *tokens))
    return path


def nanogpt(path: Path, docs: list[list[int]]) -> Path:
    path = path.with_suffix(".bin")
    np.array(flat(docs), dtype=np.uint16).tofile(path)
    return path


WRITERS: dict[str, tuple[Callable[..., Path], dict[str, Any], str]] = {
    "datatrove": (datatrove, {}, "uint16"),
    "datatrove-wide": (datatrove, {"kind": "I"}, "uint32"),
    "megatron": (megatron, {}, "uint16"),
    "megatron-int32": (megatron, {"code": 4}, "uint32"),
    "megatron-int64": (megatron, {"code": 5}, "uint64"),
    "llmc": (llmc, {}, "uint16"),
    "llmc-llama3": (llmc, {"magic": 20240801, "version": 7, "kind": "I"}, "uint32"),
    "nanogpt": (nanogpt, {}, "uint16"),
}


def take(home: Path, **more: Any) -> Path:
    given = {"shards": home / "train", "out": home / "out", "tokenizer": "byte", "length": LENGTH}
    return run(TokensSettings(**{**given, **more}))


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_is_its_stream_of_tokens(tmp_path: Path, kind: str) -> None:
    write, how, dtype = WRITERS[kind]
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
    parts = [documents(seed) for seed in range(3)]
    files = [write(tmp_path / "train" / f"shard-{n}", part, **how) for n, part in enumerate(parts)]
    write(tmp_path / "valid" / "held", documents(9), **how)
    write(tmp_path / "valid" / "none", [], **how)  # of a task that found no text
    before = [file.read_bytes() for file in files]
    out = take(tmp_path, valid_shards=tmp_path / "valid")
    stream, rows = [token for part in parts for token in flat(part)], TokenRows(out)
    assert rows.dtype.name == dtype
    assert len(rows) == len(stream) // LENGTH
    kept = stream[: len(rows) * LENGTH]
    assert rows.take(range(len(rows))).reshape(-1).tolist() == kept
    assert [rows[i].tolist() for i in range(len(rows))] == np.array(kept).reshape(-1, LENGTH).tolist()
    about = read_manifest(out)["splits"]["train"]
    assert (about["documents"], about["dropped_tokens"]) == (90, len(stream) - len(kept))
    assert about["characters"] == sum(token != END for token in kept) == rows.characters
    assert TokenRows(out, "valid").take([0]).tolist() == [flat(documents(9))[:LENGTH]]
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "tokenizer"]  # no copy
    assert [file.read_bytes() for file in files] == before
    check_sizes(out, listed(out))
    rows.verify()
    batch = Loader(rows, batch=8, seed=0).at(3)
    assert batch.tokens.tolist() == rows.take(Loader(rows, batch=8, seed=0).indices(3)).tolist()
    assert take(tmp_path, valid_shards=tmp_path / "valid") == out  # there already


def test_a_file_or_a_pattern_names_some_of_a_folder(tmp_path: Path) -> None:
    for n in range(3):
        llmc(tmp_path / f"web_train_{n}", documents(n))
    llmc(tmp_path / "web_val_0", documents(7))
    out = take(tmp_path, shards=tmp_path / "web_train_*.bin", valid_shards=tmp_path / "web_val_0.bin")
    assert len(TokenRows(out)) == sum(len(flat(documents(n))) for n in range(3)) // LENGTH
    bare = take(tmp_path, shards=tmp_path / "web_val_0.bin", out=tmp_path / "bare")
    assert read_manifest(bare)["splits"]["valid"]["rows"] == 0
    datatrove(tmp_path / "alone", documents(1), metadata=False)
    assert len(TokenRows(take(tmp_path, shards=tmp_path / "alone.ds", out=tmp_path / "ds")))


def test_a_training_takes_them(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    datatrove(tmp_path / "train" / "a", documents(0))
    nanogpt(tmp_path / "held", documents(1))
    tokens = take(tmp_path, valid_shards=tmp_path / "held.bin")
    run = many_step("dfm", tokens, tmp_path / "run", steps=2)
    assert read_manifest(run)["finished"]
    put(tmp_path / "train" / "a.ds", 10, b"\x01")
    with pytest.raises(UserError, match=r"a\.ds was changed after it was made"):
        many_step("dfm", tokens, tmp_path / "other", steps=2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def put(path: Path, at: int, data: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])


def leave_unshuffled(path: Path) -> None:
    """What a task of datatrove's leaves that is killed while it shuffles."""
    for end in ("", ".index", ".metadata"):
        Path(f"{path}{end}").rename(path.with_name(f"1_00000_doc_shuffled.ds{end}"))
    path.with_name("1_unshuffled.ds").write_bytes(b"")


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "ds cut": ("datatrove", cut, "is damaged"),
    "ds alone": (
        "datatrove",
        lambda p: [Path(f"{p}{end}").unlink() for end in (".index", ".metadata")] and None,
        "cannot be checked",
    ),
    "ds index cut": ("datatrove", lambda p: cut(Path(f"{p}.index")), "whole numbers of 8 bytes"),
    "ds index falls": ("datatrove", lambda p: put(Path(f"{p}.index"), 8, bytes(8)), "ends before it begins"),
    "ds metadata": ("datatrove", lambda p: Path(f"{p}.metadata").write_text("gpt2|3\nmany"), "no metadata"),
    "ds two counts": ("datatrove", lambda p: Path(f"{p}.metadata").write_text("gpt2|2\n12\n"), "do not agree"),
    "bin cut": ("megatron", cut, "is damaged"),
    "idx cut": ("megatron", lambda p: cut(p.with_suffix(".idx")), "is damaged"),
    "idx magic": ("megatron", lambda p: put(p.with_suffix(".idx"), 0, b"MMIDIDY"), "are not MMIDIDX"),
    "idx version": ("megatron", lambda p: put(p.with_suffix(".idx"), 9, b"\x02"), "version 2"),
    "idx floats": ("megatron", lambda p: put(p.with_suffix(".idx"), 17, b"\x06"), "type 6"),
    "idx count": ("megatron", lambda p: put(p.with_suffix(".idx"), 18, b"\xff" * 8), "is damaged"),
    "idx order": ("megatron", lambda p: put(p.with_suffix(".idx"), 34 + 30 * 4, b"\x02"), "one after another"),
    "idx empty": ("megatron", lambda p: p.with_suffix(".idx").write_bytes(b""), "are not MMIDIDX"),
    "llmc cut": ("llmc", cut, "is damaged"),
    "llmc magic": ("llmc", lambda p: put(p, 0, struct.pack("<i", 20240522)), "magic number 20240522"),
    "llmc version": ("llmc", lambda p: put(p, 4, struct.pack("<i", 3)), "version 3"),
    "llmc count": ("llmc", lambda p: put(p, 8, struct.pack("<i", -5)), "is damaged"),
    "nanogpt cut": ("nanogpt", lambda p: p.write_bytes(p.read_bytes()[:-1]), "whole numbers of 2 bytes"),
    "nanogpt empty": ("nanogpt", lambda p: p.write_bytes(b""), "hold no tokens"),
    "ds cut off": ("datatrove", leave_unshuffled, "run datatrove's pipeline again"),
    "outside": ("nanogpt", lambda p: put(p, 40, b"\xff\xff"), "holds token 65535 at place 20, and the tokenizer byte"),
    "negative": ("megatron-int32", lambda p: put(p, 40, b"\xff" * 4), "holds token 4294967295 at place 10"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    kind, harm, said = DAMAGE[damage]
    (tmp_path / "train").mkdir()
    harm(WRITERS[kind][0](tmp_path / "train" / "shard", documents(0), **WRITERS[kind][1]))
    words = ["--shards", str(tmp_path / "train"), "--out", str(tmp_path / "out"), "--length", "16"]
    assert main(["tokens", *words, "--tokenizer", "byte"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_shard_that_changes_later_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    path = nanogpt(tmp_path / "train" / "shard", documents(0))
    out, data = take(tmp_path), path.read_bytes()
    put(path, 10, b"\x01")
    with pytest.raises(UserError, match="was changed after it was made"):
        TokenRows(out).verify()
    put(path, 10, b"\xff\xff")
    with pytest.raises(UserError, match="hold token 65"):
        TokenRows(out).take(range(3))
    path.write_bytes(data[:-2])
    with pytest.raises(UserError, match="bytes, not"):
        TokenRows(out)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"shards": None}, "give --corpus FOLDER or --shards PATH"),
        ({"corpus": Path("corpus")}, "a corpus or from shards"),
        ({"layout": "document"}, "leave out layout"),
        ({"part": "0/2"}, "leave out layout and part"),
        ({"tokenizer": "bpe"}, "need the tokenizer they were made with"),
        ({"shards": Path("nowhere")}, "no token shards at nowhere"),
        ({"shards": Path("**nowhere")}, "no token shards at"),
        ({"length": 10**6}, "do not fill one row"),
        ({"valid_shards": "same"}, "must not be learned"),
        ({"shards": None, "corpus": Path("c"), "valid_shards": Path("v")}, "valid_shards go with shards"),
    ],
)
def test_what_shards_cannot_be(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    (tmp_path / "train").mkdir()
    nanogpt(tmp_path / "train" / "shard", documents(0))
    if more.get("valid_shards") == "same":
        more = {"valid_shards": tmp_path / "train" / "shard.bin"}
    with pytest.raises(UserError, match=re.escape(said)):
        take(tmp_path, **more)
    assert not (tmp_path / "out").exists()


def opens_many(tokens: Path, hard: int) -> None:
    """Read rows of very many files where a process may hold few open."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        rows = TokenRows(tokens)
        print(rows.take(range(len(rows))).shape)
    except UserError as problem:
        print(problem)


def test_more_files_than_a_process_may_open_at_first(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for n in range(150):
        nanogpt(tmp_path / "train" / f"{n:03d}", [[97] * LENGTH])
    tokens = take(tmp_path)
    shape = f"(150, {LENGTH})"
    for hard, said in (
        (4000, shape),
        (300, shape),
        (140, "150 files are to be open at once, and the system allows 140"),
    ):
        child = Child(opens_many, tokens, hard)
        assert child.wait() == 0
        assert said in child.said()


def test_a_name_that_cannot_be_noted(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    nanogpt(tmp_path / "train" / os.fsdecode(b"\xff"), documents(0))
    with pytest.raises(UserError, match="is not UTF-8"):
        take(tmp_path)


def test_kinds_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    nanogpt(tmp_path / "train" / "a", documents(0))
    out = take(tmp_path)
    with pytest.raises(UserError, match="is a folder that `tokens` made"):
        take(tmp_path, shards=out, out=tmp_path / "other")
    llmc(tmp_path / "train" / "b", documents(1), magic=20240801, version=7, kind="I")
    with pytest.raises(UserError, match="give shards of one type"):
        take(tmp_path, out=tmp_path / "other")
    datatrove(tmp_path / "train" / "c", documents(1))
    with pytest.raises(UserError, match="those of one kind"):
        take(tmp_path, out=tmp_path / "other")
