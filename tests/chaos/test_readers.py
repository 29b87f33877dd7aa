"""Every reader of files, on any bytes and on real files with something wrong in them: a UserError, or what it read.

Nothing else may come out, and no reader may take a gigabyte. `make fuzz` draws more examples; for 100 000 of them:

    python -m pytest tests/chaos/test_readers.py --hypothesis-profile once
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from chaos_files import WRONG, changed, places

from tsdfm.compass.validate import read_validation
from tsdfm.corpus.settings import SourceSettings
from tsdfm.corpus.source import read
from tsdfm.corpus.store import read_documents
from tsdfm.engine.log import Metrics, read_metrics
from tsdfm.errors import UserError
from tsdfm.judges.cache import read_scores
from tsdfm.judges.texts import read_texts
from tsdfm.recipes import read_recipe
from tsdfm.report.cells import load_cell
from tsdfm.report.rows import rows_in
from tsdfm.samples.prefixes import read_prefixes
from tsdfm.samples.trajectory import Trajectory
from tsdfm.store.bundle import read_bundle
from tsdfm.store.checkpoint import find_checkpoint, load_weights, read_state
from tsdfm.store.hashes import check_inputs, listed
from tsdfm.store.kinds import RunState
from tsdfm.store.lock import _read as read_lock
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.bpe import gpt2
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.tokenizer import load_tokenizer

HASH = "0" * 64
INPUT = {"path": "x", "sha256": HASH}
MANIFEST = {"stage": "teacher", "settings": {"loop": {"steps": 3}}, "inputs": {"tokens": INPUT}, "parent": INPUT}
SHARD = {"file": "train-00000.bin", "rows": 2, "characters": 8, "sha256": HASH}
SPLIT = {"rows": 2, "characters": 8, "documents": 1, "shards": [SHARD]}
TOKENS = MANIFEST | {
    "stage": "tokens", "splits": {"train": SPLIT, "valid": SPLIT}, "tokenizer": {"fingerprint": "x"}, "vocab_size": 257,
    "end_of_text": 256, "length": 4, "layout": "packed", "dtype": "uint16",
}  # fmt: skip
TEXT = {"documents": 1, "characters": 8, "sha256": HASH, "bytes": 3}
CORPUS = MANIFEST | {"stage": "corpus", "splits": {"train": TEXT, "valid": TEXT}}
BUNDLE = {"format": 2, "stage": "ship", "members": {"student": {"stage": "x", "sha256": HASH, "bytes": 3, "model": {}}}}
STATE = {
    "format": 1, "step": 3, "files": {"model.safetensors": {"sha256": HASH, "bytes": 3}}, "tokens": 5,
    "meters": {"x": 1.5}, "best": {"step": 3, "metric": "elbo", "value": 1.5}, "identity": {"stage": "x"},
}  # fmt: skip
WAY = {
    "format": 1, "method": "x", "source": "mask", "steps": 1, "nfe": 1, "seed": 0, "vocab": 9, "mask": 9,
    "end_of_text": 8, "pieces": {"1": "a"}, "rows": [{"given": [0], "start": [1, 9], "energy": 1.5,
    "steps": [{"t": 0, "h": 1, "changes": [[1, 2]], "confidence": 0.5, "energy": 2}]}],
}  # fmt: skip
PIECE = {"kind": "bpe", "vocab": ["a", "b"], "merges": ["a b"], "end_of_text": 2, "name": "x", "fingerprint": "y"}
EXAM = {
    "source": "mask", "accuracy": {"overall": 1}, "bins": [{"from": 0, "to": 1, "count": 1, "mean": 1.5, "std": None}],
    "intervals": {"x": [0, 1]}, "pairs": {"x": 2}, "samples": 1, "seed": 0, "checkpoint": "step-1", "settings": {},
}  # fmt: skip
ROW = {"method": "x", "steps": 2, "ppl": 3.5, "ppl_interval": [3, 4], "entropy_bits": 5.5, "judges": {"j": {"ppl": 2}}}
CELL = {
    "format": 1, "key": {"method": "x"}, "method": "x", "source": None, "steps": 2, "nfe": 2, "length": 2, "anchor": 0,
    "end_of_text": 9, "seconds": 1.5, "hardware": "x", "texts": ["a"], "tokens": ["1 2"],
}  # fmt: skip
LINE = {"step": 2, "kind": "train", "loss": 1.5, "seconds": 2, "tokens": None}
SCORE = {"judge": "x", "key": "y", "score": {"nll": 1.5, "tokens": 3}}
LOCK = {"host": "x", "machine": "y", "pid": 3, "started": 4, "since": "then", "token": "t"}

Reader = Callable[[Path], Any]


def everything(folder: Path) -> None:
    """What `verify` and a stage do with a manifest."""
    listed(folder)
    check_inputs({"x": folder}, folder)


def rows(folder: Path) -> None:
    TokenRows(folder, "train").take([0, 1])


def source(**given: Any) -> Reader:
    return lambda path: list(read(SourceSettings(path=path, **given)))


READERS: dict[str, tuple[str, Any, Reader]] = {
    "manifest": ("manifest.json", MANIFEST, lambda path: read_manifest(path.parent)),
    "tokens": ("manifest.json", TOKENS, lambda path: everything(path.parent)),
    "rows": ("manifest.json", TOKENS, lambda path: rows(path.parent)),
    "corpus": ("manifest.json", CORPUS, lambda path: everything(path.parent)),
    "bundle": ("manifest.json", BUNDLE, lambda path: read_bundle(path.parent)),
    "state": ("state.json", STATE, lambda path: read_state(path.parent, RunState)),
    "best": ("checkpoints/best.json", STATE["best"], lambda path: find_checkpoint(path.parent.parent, "best")),
    "tokenizer": ("tokenizer.json", PIECE, lambda path: load_tokenizer(path.parent)),
    "gpt2": ("encoder.json", {"a": 0, "b": 1}, lambda path: gpt2(path.parent)),
    "merges": ("vocab.bpe", "a b\nab c", lambda path: gpt2(path.parent)),
    "trajectory": ("way.json", WAY, Trajectory.load),
    "metrics": ("metrics.jsonl", LINE, lambda path: read_metrics(path.parent)),
    "resumed metrics": ("metrics.jsonl", LINE, lambda path: Metrics(path.parent, 3).close()),
    "validation": ("validation.json", EXAM, read_validation),
    "rows of a report": ("metrics.json", [ROW], rows_in),
    "cell": ("cell.json", CELL, load_cell),
    "scores": ("scores.jsonl", SCORE, read_scores),
    "lock": (".lock", LOCK, read_lock),
    "memory": (".checked.json", {HASH: {"x": [1, 2]}}, lambda path: check_inputs({"x": path.parent}, path.parent)),
    "texts": ("texts.jsonl", {"text": "a", "prefix": "b"}, read_texts),
    "prefixes": ("prefixes", {"prefix": "a"}, read_prefixes),
    "recipe": (
        "recipe.toml",
        "[models.x]\nmethod = 'dfm'\nloop.steps = 3\n",
        lambda path: read_recipe(str(path)).models,
    ),
    "jsonl": ("a.jsonl", {"text": "a"}, source()),
    "text": ("a.txt", "one\n\ntwo", source(cut="paragraphs")),
    "wikitext": ("a.txt", " = A = \n\n one @-@ two\n", source(cut="wikitext", tidy=True)),
    "gzip": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n'), source()),
    "xz": ("a.txt.xz", lzma.compress(b"one\n"), source()),
    "zstandard": ("a.txt.zst", bytes.fromhex("28b52ffd24042100006f6e650a5f5f5f5f"), source()),
    "split": (
        "train.jsonl.gz",
        gzip.compress(b'{"text": "a"}\n'),
        lambda path: list(read_documents(path.parent, "train")),
    ),
    "weights": ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", lambda path: load_weights(path.parent, "model")),
}


def whole(content: Any) -> bytes:
    return (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )


def spoiled(content: Any) -> st.SearchStrategy[bytes]:
    """Any bytes, or the real ones with a value, a byte or a piece that is wrong."""
    data = whole(content)
    cut = st.tuples(st.integers(0, len(data)), st.integers(0, len(data)), st.binary(max_size=12))
    out = st.binary(max_size=200) | cut.map(lambda c: data[: c[0]] + c[2] + data[c[1] :])
    if isinstance(content, (dict, list)):
        anything = st.sampled_from(WRONG) | st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
            lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
            max_leaves=6,
        )
        where = st.sampled_from([*places(content)])
        made = st.tuples(where, anything, st.booleans())
        out |= made.map(lambda m: json.dumps(changed(content, m[0], m[1], drop=m[2])).encode())
    return out


@pytest.mark.hypothesis  # so that `make fuzz` takes it
@pytest.mark.parametrize("name", READERS)
def test_a_reader_reads_or_refuses(name: str, tmp_path: Path) -> None:
    place, content, reader = READERS[name]
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    for other, text in (("encoder.json", '{"a": 0}'), ("vocab.bpe", "a b"), ("state.json", json.dumps(STATE))):
        if name in ("gpt2", "merges", "weights"):
            (tmp_path / other).write_text(text)
    (tmp_path / "train-00000.bin").write_bytes(bytes(16))
    most = max(10, settings.default.max_examples // 5)  # type: ignore[attr-defined]

    @settings(max_examples=most)
    @given(spoiled(content))
    def reads_or_refuses(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(UserError):
            reader(path)

    path.write_bytes(whole(content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reads_or_refuses()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes
