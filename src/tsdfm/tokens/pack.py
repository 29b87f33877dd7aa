"""From the documents of a corpus, or of a part of it, to shards of rows.

OUT/progress.json                while it runs: the finished shards, and the place in the corpus after each

A shard is written beside its final name, synced and renamed before it is recorded. Killed at any moment, the next run
with the same settings keeps the recorded shards and goes on behind the last of them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tsdfm.corpus.progress import TextProgress
from tsdfm.corpus.split import SPLITS
from tsdfm.corpus.store import count_documents, read_documents, split_files
from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.store import lock
from tsdfm.store.files import disk, sync_folder, write_json
from tsdfm.store.hashes import MEMORY, check_inputs, remember, stored
from tsdfm.store.kinds import PartRecord, TokensProgress
from tsdfm.store.manifest import read_manifest
from tsdfm.store.parts import Part
from tsdfm.store.schema import read_record
from tsdfm.tokens.choose import front, tokenizer_for
from tsdfm.tokens.encode import encode_in_order
from tsdfm.tokens.layout import Encoded, Piece, Place, lay_out
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import Tokenizer

PROGRESS = "progress.json"


def make_shards(settings: TokensSettings, key: str, part: Part | None = None) -> tuple[Tokenizer, dict[str, Any]]:
    """Begin, or go on, until all shards are there: of the whole corpus, or of a part's documents."""
    out = settings.out
    fresh = not (out / record_of(part)).is_file()
    progress = _open_progress(settings, key, part)
    try:
        _check_corpus(settings, progress, part)
        with lock.held(out, out / ".tokenizer.lock", wait=True):  # the first of several parts makes it for all
            tokenizer = tokenizer_for(settings)
    except UserError:
        if fresh:  # nothing was begun: the mended command shall find the way clear
            clear(out, progress, part)
        raise
    dtype = dtype_of(tokenizer)
    _check_room(settings, dtype)
    _check_shards(out, progress, settings.length + (settings.layout == "prompt"), dtype.itemsize)
    for split in SPLITS:
        _pack(settings, split, tokenizer, progress, part)
    return tokenizer, progress


def record_of(part: Part | None) -> str:
    """The file in which it is noted how far a run is."""
    return PROGRESS if part is None else part.record


def dtype_of(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The type of a token on disk."""
    return np.dtype("<u2") if tokenizer.vocab_size < 2**16 else np.dtype("<u4")


def _check_corpus(settings: TokensSettings, progress: dict[str, Any], part: Part | None) -> None:
    """Refuse a corpus that is not what it was when it was made; a part looks at the files that it reads."""
    inputs = {"corpus": settings.text}
    if part is None:
        remember(settings.out, check_inputs(inputs, settings.out))
        return
    stops = {split: progress[split]["stop"] for split in SPLITS}
    files = [(split, file) for split in SPLITS for file in split_files(settings.text, split)]
    reads = [
        file.path.name
        for split, file in files
        if file.before < stops[split] and file.after > progress[split]["after"][0]
    ]
    check_inputs(inputs, settings.out, reads)


def _check_room(settings: TokensSettings, dtype: np.dtype[Any]) -> None:
    """Refuse shards larger than memory: one is held at a time, or all text where it is less."""
    text = sum(about["characters"] + about["documents"] for about in read_manifest(settings.text)["splits"].values())
    held = min(settings.shard_rows * settings.length, 4 * text)
    check_memory(2 * held * dtype.itemsize, f"a shard of {settings.shard_rows:,} rows", "lower shard_rows or length")


def _check_shards(out: Path, progress: dict[str, Any], columns: int, size: int) -> None:
    """Refuse to go on behind shards that are not what they were when they were written."""
    from tsdfm.store.checkpoint import check_file  # loads torch

    mend = f"restore it from a copy, or remove {out} and run the same command again"
    for shard in (shard for split in SPLITS for shard in progress[split]["shards"]):
        check_file(out / shard["file"], {"sha256": shard["sha256"], "bytes": stored(shard, columns) * size}, mend)


def clear(out: Path, progress: dict[str, Any], part: Part | None = None) -> None:
    """Remove what this stage has made, or what one part has, and nothing else."""
    if part is None:
        shutil.rmtree(out / "tokenizer", ignore_errors=True)
    names = [shard["file"] for split in SPLITS for shard in progress[split]["shards"]]
    for name in (*names, record_of(part), *([MEMORY] if part is None else [])):
        (out / name).unlink(missing_ok=True)


def _open_progress(settings: TokensSettings, key: str, part: Part | None) -> dict[str, Any]:
    """The record of an earlier run that was cut off, or a new one."""
    out = settings.out
    path = out / record_of(part)
    if path.is_file():
        if read_record(path, PartRecord)["key"] == key:
            return dict(read_record(path, TokensProgress))
        raise UserError(f"{out} holds an unfinished run with other settings or texts: remove it or give another --out")
    own = (".",) if part is None else (".", "tokenizer", "part-", *(f"{split}-" for split in SPLITS))
    if out.exists() and (not out.is_dir() or any(not p.name.startswith(own) for p in out.iterdir())):
        raise UserError(f"{out} is in the way: it is not a tokens folder; remove it or give another --out")
    fresh: dict[str, Any] = {"key": key}
    for split in SPLITS:
        fresh[split] = {"shards": [], "after": [0, 0], "dropped_tokens": 0, "skipped_documents": 0, "done": False}
        if part is not None:
            stretch = part.of(count_documents(settings.text, split))
            fresh[split] |= {"after": [stretch.start, 0], "stop": stretch.stop}
    write_json(path, fresh)
    return fresh


def _pack(
    settings: TokensSettings, split: str, tokenizer: Tokenizer, progress: dict[str, Any], part: Part | None
) -> None:
    """Write the shards of one split that are not there yet, recording each as it is finished."""
    state, dtype, record = progress[split], dtype_of(tokenizer), settings.out / record_of(part)
    if state["done"]:
        return
    start, stop = Place(*state["after"]), state.get("stop", math.inf)
    with TextProgress(f"tokens, {split}", count_documents(settings.text, split)) as bar:
        bar.documents = start.document

        for piece in lay_out(
            _encoded(settings, split, start, stop, tokenizer, dtype, bar),
            start,
            layout=settings.layout,
            length=settings.length,
            shard_rows=settings.shard_rows,
            end_of_text=tokenizer.end_of_text,
        ):
            if part is not None:  # the next part's documents follow: nothing is dropped
                piece = replace(piece, dropped_tokens=0)
            elif piece.rest is not None:
                piece = replace(piece, rest=None)
            if len(piece.rows) or (piece.rest is not None and len(piece.rest)):
                name = f"{split}-{'' if part is None else part.name + '-'}{len(state['shards']):05d}.bin"
                prompts = settings.layout == "prompt"
                state["shards"].append(_write_shard(settings.out / name, piece, tokenizer, dtype, prompts))
            state["after"] = list(piece.after)
            state["dropped_tokens"] += piece.dropped_tokens
            state["skipped_documents"] += piece.skipped_documents
            write_json(record, progress)
    state["done"] = True
    write_json(record, progress)


def _encoded(
    settings: TokensSettings,
    split: str,
    start: Place,
    stop: float,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    bar: TextProgress,
) -> Iterator[Encoded]:
    """The documents of a split from a place on as ids, with their prompts where the layout asks for them."""
    prompts = settings.layout == "prompt"
    documents = read_documents(settings.text, split, start.document, stop)
    parts = ((front(document), document.text) if prompts else (document.text,) for document in documents)
    texts = itertools.chain.from_iterable(parts)
    found = encode_in_order(texts, tokenizer, dtype, settings.workers)
    for characters, ids in found:
        prompt = None
        if prompts:
            prompt, (characters, ids) = ids[:-1], next(found)
        bar.advance(1, characters)
        yield Encoded(ids, prompt)


def _write_shard(path: Path, piece: Piece, tokenizer: Tokenizer, dtype: np.dtype[Any], prompts: bool) -> dict[str, Any]:
    """Write one shard so that it is there whole or not at all; returns its record."""
    whole = np.column_stack([piece.rows, piece.given]) if prompts and piece.given is not None else piece.rows
    tokens = piece.rows.reshape(-1)
    stored = np.ascontiguousarray(whole, dtype=dtype).reshape(-1)
    if piece.rest is not None:
        tokens = stored = np.concatenate([stored, piece.rest.astype(dtype)])
    half = path.with_suffix(".part")
    with disk(path):
        try:
            with half.open("wb") as file:
                file.write(stored.data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            half.unlink(missing_ok=True)
            raise
        half.replace(path)
        sync_folder(path.parent)
    about = {
        "file": path.name,
        "rows": len(piece.rows),
        "characters": int(tokenizer.count(tokens) @ tokenizer.characters),
        "sha256": hashlib.sha256(stored.data).hexdigest(),
    }
    return about if piece.rest is None else {**about, "tokens": len(tokens)}


def rows_in(state: dict[str, Any]) -> int:
    """The whole rows of the shards of a split."""
    return sum(shard["rows"] for shard in state["shards"])
