"""Every reader of files, each with a whole file of its kind and with what must lie beside it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from tsdfm.compass.validate import read_validation
from tsdfm.corpus.settings import SourceSettings
from tsdfm.corpus.source import read
from tsdfm.corpus.store import read_documents
from tsdfm.corpus.storyteller import read_vocabulary, storyteller_in
from tsdfm.engine.log import Metrics, read_metrics
from tsdfm.judges.cache import read_scores
from tsdfm.judges.gguf import gguf_file
from tsdfm.judges.texts import read_texts
from tsdfm.public.tensors import open_tensors, read_config
from tsdfm.recipes import read_recipe
from tsdfm.report.cells import load_cell
from tsdfm.report.page.gather import gather
from tsdfm.report.rows import rows_in
from tsdfm.samples.prefixes import read_prefixes
from tsdfm.samples.trajectory import Trajectory
from tsdfm.store.bundle import read_bundle
from tsdfm.store.checkpoint import find_checkpoint, read_state, read_tensors
from tsdfm.store.hashes import check_inputs, listed
from tsdfm.store.kinds import CorpusPart, RunState, TokensProgress
from tsdfm.store.lock import _read as read_lock
from tsdfm.store.manifest import read_manifest
from tsdfm.store.schema import read_record
from tsdfm.tokens.bpe import gpt2, train_bpe
from tsdfm.tokens.formats import find_streams
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.tokenizer import load_tokenizer

HASH = "0" * 64
INPUT = {"path": "x", "sha256": HASH}
MANIFEST = {"stage": "teacher", "settings": {"loop": {"steps": 3}}, "inputs": {"tokens": INPUT}, "parent": INPUT}
ROWS = bytes(16)
SHARD = {"file": "train-00000.bin", "rows": 2, "characters": 8, "sha256": hashlib.sha256(ROWS).hexdigest()}
SPLIT = {"rows": 2, "characters": 8, "documents": 1, "shards": [SHARD]}
TOKENS = MANIFEST | {
    "stage": "tokens", "splits": {"train": SPLIT, "valid": SPLIT}, "tokenizer": {"fingerprint": "x"}, "vocab_size": 257,
    "end_of_text": 256, "length": 4, "layout": "packed", "dtype": "uint16",
}  # fmt: skip
TEXT = {"documents": 1, "characters": 8, "sha256": hashlib.sha256(b"abc").hexdigest(), "bytes": 3}
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
PAIRS = train_bpe(["one two one two"], 260)
PIECES: Any = {"name": "x", "fingerprint": PAIRS.fingerprint, **PAIRS.content()}
IDS, MERGES = {token: number for number, token in enumerate(PIECES["vocab"])}, "\n".join(PIECES["merges"])
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
PACKED = {"shards": [SHARD], "after": [1, 0], "dropped_tokens": 0, "skipped_documents": 0, "done": False}
PROGRESS = {"key": HASH, "train": PACKED, "valid": PACKED}
PART = {
    "key": HASH, "done": True, "counts": {"train/documents": 1}, "inputs": {"x": HASH},
    "splits": dict.fromkeys(("train", "valid"), TEXT | {"file": "train.jsonl.gz"}),
}  # fmt: skip
TABLE = {
    "title": "x",
    "columns": [{"name": "a", "label": "b", "align": "left", "format": ".1f"}],
    "rows": [{"a": 1.5}],
    "notes": ["y"],
    "command": "z",
}
MEGATRON = struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", 1, 8, 1, 2, 8, 0, 0, 1)
LOCK = {"host": "x", "machine": "y", "pid": 3, "started": 4, "since": "then", "token": "t"}

Reader = Callable[[Path], Any]


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    return file.getvalue()


def judge_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.gguf", b"GGUF")
    return file.getvalue()


def unpacked(path: Path) -> None:
    with gguf_file(path) as inside:
        inside.stat()


def teller() -> bytes:
    """A storyteller of one layer, of two numbers a token, and of one token."""
    shapes = {"embedding": (1, 2), "final_norm": (2,), "attention_norm": (1, 2), "ffn_norm": (1, 2)}
    shapes |= dict.fromkeys(("wq", "wk", "wv", "wo", "w1", "w2", "w3"), (1, 2, 2))
    sizes = {"dim": 2, "hidden": 2, "heads": 1, "layers": 1, "positions": 4, "vocab": 1}
    return save({name: torch.ones(shape) for name, shape in shapes.items()}, {k: str(v) for k, v in sizes.items()})


ONE = save({"a": torch.ones(2)})
LETTER = struct.pack("<ifi1s", 1, 0.5, 1, b"a")


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
    "tokenizer": (
        "tokenizer.json",
        {"name": "x", "fingerprint": PAIRS.fingerprint, **PIECES},
        lambda path: load_tokenizer(path.parent),
    ),
    "gpt2": ("encoder.json", IDS, lambda path: gpt2(path.parent)),
    "merges": ("vocab.bpe", MERGES, lambda path: gpt2(path.parent)),
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
    "csv": ("a.csv", 'text,n\n"a, b",1\n', source()),
    "text": ("a.txt", "one\n\ntwo", source(cut="paragraphs")),
    "wikitext": ("a.txt", " = A = \n\n one @-@ two\n", source(cut="wikitext", tidy=True)),
    "gzip": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n'), source()),
    "xz": ("a.txt.xz", lzma.compress(b"one\n"), source()),
    "zstandard": ("a.txt.zst", bytes.fromhex("28b52ffd20042100006f6e650a"), source()),
    "split": (
        "train.jsonl.gz",
        gzip.compress(b'{"text": "a"}\n'),
        lambda path: list(read_documents(path.parent, "train")),
    ),
    "tokens that go on": ("progress.json", PROGRESS, lambda path: read_record(path, TokensProgress)),
    "part of a corpus": ("part-00000-of-00001.json", PART, lambda path: read_record(path, CorpusPart)),
    "table of a report": ("report/main.json", TABLE, lambda path: gather(path.parent.parent)),
    "frontier": ("report/frontier.json", TABLE | {"points": [ROW]}, lambda path: gather(path.parent.parent)),
    "config of a public model": ("config.json", {"model_type": "x", "hidden_size": 3}, read_config),
    "index of a public model": (
        "model.safetensors.index.json",
        {"weight_map": {"a": "model.safetensors"}},
        lambda path: open_tensors(path.parent).shapes,
    ),
    "public safetensors": ("a.safetensors", ONE, lambda path: open_tensors(path).shapes),
    "torch file": ("a.bin", torch_file(), lambda path: open_tensors(path).shapes),
    "judge's archive": ("a.whl", judge_archive(), unpacked),
    "storyteller": ("storyteller.safetensors", teller(), lambda path: storyteller_in(path.parent)),
    "storyteller's tokenizer": ("tokenizer.bin", LETTER, read_vocabulary),
    "shards of nanoGPT": ("x/a.bin", bytes(12), lambda path: find_streams(path, 300)),
    "shards of llm.c": (
        "x/a.bin",
        struct.pack("<3i", 20240520, 1, 2) + bytes(1016),
        lambda path: find_streams(path, 9),
    ),
    "shards of datatrove": ("x/a.ds.index", struct.pack("<Q", 8), lambda path: find_streams(path.with_suffix(""), 300)),
    "their metadata": ("x/a.ds.metadata", "x|2\n8", lambda path: find_streams(path.with_suffix(""), 300)),
    "shards of Megatron": ("x/a.idx", MEGATRON, lambda path: find_streams(path.with_suffix(".bin"), 300)),
    "weights": ("model.safetensors", ONE, lambda path: read_tensors(path, "x")),
}
BESIDE: dict[str, tuple[tuple[str, bytes], ...]] = {
    "tokens": (("train-00000.bin", ROWS),),
    "rows": (("train-00000.bin", ROWS),),
    "corpus": (("train.jsonl.gz", b"abc"), ("valid.jsonl.gz", b"abc")),
    "frontier": (("report/main.json", json.dumps(TABLE).encode()),),
    "best": (("checkpoints/step-00000003/state.json", json.dumps(STATE).encode()),),
    "gpt2": (("vocab.bpe", MERGES.encode()),),
    "merges": (("encoder.json", json.dumps(IDS).encode()),),
    "index of a public model": (("model.safetensors", ONE),),
    "storyteller": (("tokenizer.bin", LETTER),),
    "shards of datatrove": (("x/a.ds", ROWS),),
    "their metadata": (("x/a.ds", ROWS),),
    "shards of Megatron": (("x/a.bin", ROWS),),
}
"""What lies beside the file that a reader is given."""
