"""The tokens stage: a corpus → tokenizer → rows in memory-mapped shards, with a manifest.

OUT/tokenizer/tokenizer.json     the tokenizer
OUT/train-00000.bin, …           raw little-endian uint16 or uint32, `length` tokens a row; with layout prompt, one more
                                 number: how many tokens at the front are given
OUT/manifest.json                written last: a folder that has one is complete
OUT/progress.json                while it runs: the finished shards, and the place in the corpus after each

A shard is written beside its final name, synced and renamed before it is recorded. Killed at any moment, the next run
with the same settings keeps the recorded shards and goes on behind the last of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tsdfm import terminal
from tsdfm.corpus.files import Document
from tsdfm.corpus.progress import TextProgress
from tsdfm.corpus.split import SPLITS
from tsdfm.corpus.store import count_documents, read_documents
from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.settings import to_dict
from tsdfm.store.files import disk, file_sha256, read_json, sync_folder, write_json
from tsdfm.store.hashes import MEMORY, Known, check_inputs, check_sizes, listed, remember, wrong_size
from tsdfm.store.lock import held
from tsdfm.store.manifest import NAME, input_sha256, read_manifest, write_manifest
from tsdfm.tokens.bpe import gpt2, train_bpe
from tsdfm.tokens.encode import encode_in_order
from tsdfm.tokens.layout import Encoded, Piece, Place, lay_out
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

PROGRESS = "progress.json"
FORMAT = 1  # of the shards; a change makes old and new runs different things


def run(settings: TokensSettings) -> Path:
    """Tokenise a corpus and return the folder of its rows. Run it again after a kill and it goes on where it was."""
    key = _key(settings)
    if _finished(settings.out, key):
        return _tell(settings.out, " (there already)")
    with held(settings.out):
        if _finished(settings.out, key):  # by another process, in between
            return _tell(settings.out, " (there already)")
        _make(settings, key)
    return _tell(settings.out)


def _make(settings: TokensSettings, key: str) -> None:
    """Begin, or go on."""
    fresh = not (settings.out / PROGRESS).is_file()
    progress = _open_progress(settings.out, key)
    try:
        remember(settings.out, check_inputs({"corpus": settings.corpus}, settings.out))
        tokenizer = _tokenizer(settings)
    except UserError:
        if fresh:  # nothing was begun: the mended command shall find the way clear
            _clear(settings.out, progress)
        raise
    dtype = np.dtype("<u2") if tokenizer.vocab_size < 2**16 else np.dtype("<u4")
    _check_room(settings, dtype)
    _check_shards(settings.out, progress, (settings.length + (settings.layout == "prompt")) * dtype.itemsize)
    for split in SPLITS:
        _pack(settings, split, tokenizer, dtype, progress)
    if not _rows(progress["train"]):
        _clear(settings.out, progress)
        raise UserError(_why_empty(settings, progress["train"]))
    _finish(settings, key, tokenizer, dtype, progress)


def _check_room(settings: TokensSettings, dtype: np.dtype[Any]) -> None:
    """Refuse shards larger than memory: one is held at a time, or all text where it is less."""
    text = sum(about["characters"] + about["documents"] for about in read_manifest(settings.corpus)["splits"].values())
    held = min(settings.shard_rows * settings.length, 4 * text)
    check_memory(2 * held * dtype.itemsize, f"a shard of {settings.shard_rows:,} rows", "lower shard_rows or length")


def _check_shards(out: Path, progress: dict[str, Any], row_bytes: int) -> None:
    """Refuse to go on behind shards that are not what they were when they were written."""
    for shard in (shard for split in SPLITS for shard in progress[split]["shards"]):
        path = out / shard["file"]
        known = Known(shard["sha256"], shard["rows"] * row_bytes)
        problem = wrong_size(path, known)
        if problem is None and file_sha256(path) != known.sha256:
            problem = "was changed after it was written (sha256 differs)"
        if problem:
            raise UserError(f"{path} {problem}: restore it from a copy, or remove {out} and run the same command again")


def _clear(out: Path, progress: dict[str, Any]) -> None:
    """Remove what this stage has made, and nothing else."""
    shutil.rmtree(out / "tokenizer", ignore_errors=True)
    names = [shard["file"] for split in SPLITS for shard in progress[split]["shards"]]
    for name in (*names, PROGRESS, MEMORY):
        (out / name).unlink(missing_ok=True)


def _tell(out: Path, more: str = "") -> Path:
    """Say what was made, where it lies and what comes next."""
    found = read_manifest(out)
    train, valid = (found["splits"][split]["rows"] for split in SPLITS)
    total, held = terminal.short(train * found["length"]), f"{valid:,} rows" if valid else "nothing"
    made = f"{total} tokens, {train:,} rows of {found['length']} tokens, and {held} held out"
    told = f"{made}; {found['vocab_size']:,} different tokens{more}"
    terminal.made("tokens", told, out, "teacher", "--tokens", out, "--out", out.parent / "teacher")
    return out


def _key(settings: TokensSettings) -> str:
    """What the shards depend on, as one hash: the settings that matter, the texts, the tokenizer's files."""
    count_documents(settings.corpus, "train")  # says so if it is no corpus
    first = next(read_documents(settings.corpus, "train"), None) if settings.layout == "prompt" else None
    if first is not None and not first.prompt:
        raise UserError(f"{settings.corpus} has no prompts: make it with --prompt FIELD, or use layout document")
    plain = to_dict(settings)
    for name in ("corpus", "out", "workers", "tokenizer_files"):
        plain.pop(name)
    texts = {split: about["sha256"] for split, about in read_manifest(settings.corpus)["splits"].items()}
    files = input_sha256(place) if (place := _files(settings)) is not None else None
    whole = json.dumps([FORMAT, plain, texts, files], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _files(settings: TokensSettings) -> Path | None:
    """Where the tokenizer's files are; `tsdfm-small` means the tokenizer of the models of that name."""
    from tsdfm.store.bundle import find_shipped, unshipped  # loads torch

    place = settings.tokenizer_files
    shipped = None if place is None else find_shipped(place)
    if shipped and shipped[1]:
        shipped[0].member(shipped[1])  # says so if there is none of that name
    if place is not None and not shipped and not place.exists():
        raise UserError(f"no tokenizer at {place}{unshipped(place)}: give a folder that the tokens stage made")
    return shipped[0].folder / "tokenizer" if shipped else place


def _finished(out: Path, key: str) -> bool:
    if not (out / NAME).is_file():
        return False
    found = read_manifest(out)
    if found.get("stage") == "tokens" and found.get("key") == key:
        check_sizes(out, listed(out))
        return True
    raise UserError(f"{out} already holds something made with other settings or texts: remove it or give another --out")


def _open_progress(out: Path, key: str) -> dict[str, Any]:
    """The record of an earlier run that was cut off, or a new one."""
    path = out / PROGRESS
    if path.is_file():
        found = read_json(path)
        if found.get("key") == key:
            return found
        raise UserError(f"{out} holds an unfinished run with other settings or texts: remove it or give another --out")
    if out.exists() and (not out.is_dir() or any(p.name[0] != "." for p in out.iterdir())):
        raise UserError(f"{out} is in the way: it is not a tokens folder; remove it or give another --out")
    fresh: dict[str, Any] = {"key": key}
    for split in SPLITS:
        fresh[split] = {"shards": [], "after": [0, 0], "dropped_tokens": 0, "skipped_documents": 0, "done": False}
    write_json(path, fresh)
    return fresh


def _tokenizer(settings: TokensSettings) -> Tokenizer:
    """The tokenizer of this folder, made once: a run that goes on after a kill takes the saved one."""
    home = settings.out / "tokenizer"
    if home.is_dir() and any(home.glob("*.json")):
        return load_tokenizer(home)
    made: Tokenizer
    if settings.tokenizer == "byte":
        made = ByteTokenizer()
    elif settings.tokenizer == "gpt2":
        made = gpt2(_files(settings))
    elif (place := _files(settings)) is not None:
        made = load_tokenizer(place)
    else:
        made = train_bpe(_training_texts(settings), settings.vocab_size)
    made.save(home)
    return made


def _training_texts(settings: TokensSettings) -> Iterator[str]:
    """Every n-th training document and its prompt, so that the BPE sees all of a corpus and not only its beginning."""
    total = count_documents(settings.corpus, "train")
    stride = max(1, math.ceil(total / settings.train_documents))
    with TextProgress("learning the vocabulary", total) as progress:
        for number, document in enumerate(read_documents(settings.corpus, "train")):
            progress.advance(1, len(document.text))
            if number % stride == 0:
                yield _front(document) + document.text


def _pack(
    settings: TokensSettings, split: str, tokenizer: Tokenizer, dtype: np.dtype[Any], progress: dict[str, Any]
) -> None:
    """Write the shards of one split that are not there yet, recording each as it is finished."""
    state = progress[split]
    if state["done"]:
        return
    start = Place(*state["after"])
    with TextProgress(f"tokens, {split}", count_documents(settings.corpus, split)) as bar:
        bar.documents = start.document

        for piece in lay_out(
            _encoded(settings, split, start, tokenizer, dtype, bar),
            start,
            layout=settings.layout,
            length=settings.length,
            shard_rows=settings.shard_rows,
            end_of_text=tokenizer.end_of_text,
        ):
            if len(piece.rows):
                name = f"{split}-{len(state['shards']):05d}.bin"
                prompts = settings.layout == "prompt"
                state["shards"].append(_write_shard(settings.out / name, piece, tokenizer, dtype, prompts))
            state["after"] = list(piece.after)
            state["dropped_tokens"] += piece.dropped_tokens
            state["skipped_documents"] += piece.skipped_documents
            write_json(settings.out / PROGRESS, progress)
    state["done"] = True
    write_json(settings.out / PROGRESS, progress)


def _encoded(
    settings: TokensSettings, split: str, start: Place, tokenizer: Tokenizer, dtype: np.dtype[Any], bar: TextProgress
) -> Iterator[Encoded]:
    """The documents of a split from a place on as ids, with their prompts where the layout asks for them."""
    prompts = settings.layout == "prompt"
    documents = read_documents(settings.corpus, split, start.document)
    parts = ((_front(document), document.text) if prompts else (document.text,) for document in documents)
    texts = itertools.chain.from_iterable(parts)
    found = encode_in_order(texts, tokenizer, dtype, settings.workers)
    for characters, ids in found:
        prompt = None
        if prompts:
            prompt, (characters, ids) = ids[:-1], next(found)
        bar.advance(1, characters)
        yield Encoded(ids, prompt)


def _front(document: Document) -> str:
    """A document's prompt as it stands before its text: a newline, which is given too, ends it."""
    return f"{document.prompt}\n" if document.prompt else ""


def _write_shard(path: Path, piece: Piece, tokenizer: Tokenizer, dtype: np.dtype[Any], prompts: bool) -> dict[str, Any]:
    """Write one shard so that it is there whole or not at all; returns its record."""
    whole = np.column_stack([piece.rows, piece.given]) if prompts and piece.given is not None else piece.rows
    rows = np.ascontiguousarray(whole, dtype=dtype)
    half = path.with_suffix(".part")
    with disk(path):
        try:
            with half.open("wb") as file:
                file.write(rows.data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            half.unlink(missing_ok=True)
            raise
        half.replace(path)
        sync_folder(path.parent)
    counts = np.bincount(piece.rows.reshape(-1), minlength=tokenizer.vocab_size)
    return {
        "file": path.name,
        "rows": len(rows),
        "characters": int(counts @ tokenizer.characters),
        "sha256": hashlib.sha256(rows.data).hexdigest(),
    }


def _rows(state: dict[str, Any]) -> int:
    return sum(shard["rows"] for shard in state["shards"])


def _why_empty(settings: TokensSettings, state: dict[str, Any]) -> str:
    if settings.layout != "packed":
        return f"no training document fits a row of {settings.length} tokens: raise length, or use layout packed"
    tokens = state["dropped_tokens"]
    return (
        f"the training texts ({tokens} tokens) do not fill one row of {settings.length}: more text, or a lower length"
    )


def _finish(
    settings: TokensSettings, key: str, tokenizer: Tokenizer, dtype: np.dtype[Any], progress: dict[str, Any]
) -> None:
    about = {"name": tokenizer.name, "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint}
    splits = {}
    for split in SPLITS:
        state = progress[split]
        splits[split] = {
            "rows": _rows(state),
            "characters": sum(shard["characters"] for shard in state["shards"]),
            "documents": count_documents(settings.corpus, split),
            "dropped_tokens": state["dropped_tokens"],
            "skipped_documents": state["skipped_documents"],
            "shards": state["shards"],
        }
    extra = {
        "key": key,
        "tokenizer": about,
        "vocab_size": tokenizer.vocab_size,
        "end_of_text": tokenizer.end_of_text,
        "length": settings.length,
        "layout": settings.layout,
        "dtype": dtype.name,
        "splits": splits,
    }
    write_manifest(settings.out, stage="tokens", settings=settings, inputs={"corpus": settings.corpus}, extra=extra)
    if skipped := sum(about["skipped_documents"] for about in splits.values()):
        terminal.say(f"note: {skipped:,} documents are longer than a row of {settings.length} tokens and are left out")
    if not splits["valid"]["rows"]:
        terminal.say(
            "note: no held-out rows, so nothing can be evaluated on them: hold out more text (tsdfm corpus --valid)"
        )
    for left in (settings.out / PROGRESS, *settings.out.glob(".*.tmp-*")):  # the latter from a kill while saving
        left.unlink(missing_ok=True)
