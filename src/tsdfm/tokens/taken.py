"""The tokens stage for shards that are there already: it checks every token, and names the files in a manifest.

OUT/tokenizer/tokenizer.json     the tokenizer that the shards were made with
OUT/manifest.json                the shards by their paths, with sizes, hashes and where in them tokens begin

Nothing is copied. Row r is tokens r·L to (r+1)·L of all files one after another, so every training takes the folder as
it takes one whose shards were made here.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from tsdfm.corpus.progress import TextProgress
from tsdfm.errors import UserError
from tsdfm.store.hashes import SPLITS, joint_sha256
from tsdfm.store.kinds import Input
from tsdfm.store.lock import held
from tsdfm.tokens.choose import given_tokenizer
from tsdfm.tokens.formats import Stream, find_streams
from tsdfm.tokens.parts import joined
from tsdfm.tokens.run import finish, finished, why_empty
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import Tokenizer

CHUNK = 1 << 22  # tokens that are checked at a time


def run_shards(settings: TokensSettings) -> bool:
    """Check ready-made shards and name them in a manifest. Was there one already?"""
    out, tokenizer = settings.out, given_tokenizer(settings)
    if tokenizer is None:
        raise UserError("shards need the tokenizer they were made with: --tokenizer gpt2, or --tokenizer-files FOLDER")
    streams = {"train": find_streams(settings.shards, tokenizer.vocab_size) if settings.shards else [], "valid": []}
    if settings.valid_shards is not None:
        streams["valid"] = find_streams(settings.valid_shards, tokenizer.vocab_size)
    _check_apart(streams)
    key = _key(settings, streams, tokenizer)
    if finished(out, key):
        return True
    with held(out):
        if finished(out, key):
            return True
        if any(path.name[0] != "." and path.name != "tokenizer" for path in out.iterdir()):
            raise UserError(f"{out} is in the way: it is not a tokens folder; remove it or give another --out")
        _make(settings, key, tokenizer, streams)
    return False


def _check_apart(streams: dict[str, list[Stream]]) -> None:
    """Refuse shards of two types, and a file in both splits."""
    train, valid = ({stream.path.resolve() for stream in streams[split]} for split in SPLITS)
    if twice := train & valid:
        raise UserError(f"{twice.pop()} is among shards and valid_shards: what is held out must not be learned")
    if len({stream.dtype for found in streams.values() for stream in found}) > 1:
        raise UserError("shards and valid_shards hold numbers of different types: make them alike")


def _key(settings: TokensSettings, streams: dict[str, list[Stream]], tokenizer: Tokenizer) -> str:
    """What the folder depends on: row length, tokenizer, and the files as they are."""
    stats = [[(str(s.path), s.path.stat().st_size, s.path.stat().st_mtime_ns) for s in streams[k]] for k in SPLITS]
    plain = json.dumps([settings.length, tokenizer.fingerprint, stats])
    return hashlib.sha256(plain.encode()).hexdigest()


def _make(settings: TokensSettings, key: str, tokenizer: Tokenizer, streams: dict[str, list[Stream]]) -> None:
    dtype = streams["train"][0].dtype
    progress = {}
    for split in SPLITS:
        with TextProgress(f"checking {split} shards", len(streams[split]), "files") as bar:
            records = [_record(stream, settings.length, tokenizer, bar) for stream in streams[split]]
        documents = sum(record.pop("documents") for record in records)
        state = {"shards": records, "dropped_tokens": 0, "skipped_documents": 0}
        progress[split] = {**joined(settings, [state], tokenizer, dtype), "documents": documents}
    if not progress["train"]["rows"]:
        raise UserError(why_empty(settings, progress["train"]))
    tokenizer.save(settings.out / "tokenizer")
    places = {"train": settings.shards, "valid": settings.valid_shards}
    inputs = {
        f"{split}-shards": Input(path=str(place), sha256=joint_sha256(progress[split]["shards"]))
        for split, place in places.items()
        if place is not None
    }
    finish(settings, key, tokenizer, progress, dtype=dtype, inputs=inputs)


def _record(stream: Stream, length: int, tokenizer: Tokenizer, bar: TextProgress) -> dict[str, Any]:
    """Read a file once: its hash, and how often each token of the vocabulary occurs. Any other token is refused."""
    tokens, counts = stream.open(), np.zeros(tokenizer.vocab_size, dtype=np.int64)
    with stream.path.open("rb") as file:
        whole = hashlib.sha256(file.read(stream.offset))
    for first in range(0, stream.count, CHUNK):
        here = tokens[first : first + CHUNK]
        if int(here.max()) >= tokenizer.vocab_size:
            place = first + int(np.argmax(here >= tokenizer.vocab_size))
            raise UserError(
                f"{stream.path} holds token {int(tokens[place])} at place {place}, and the tokenizer {tokenizer.name} "
                f"has {tokenizer.vocab_size}: give the tokenizer that the shards were made with"
            )
        whole.update(here.data)
        counts += tokenizer.count(here)
    characters = int(counts @ tokenizer.characters)
    bar.advance(1, characters)
    return {
        "file": str(stream.path.resolve()),
        "rows": stream.count // length,
        "tokens": stream.count,
        "offset": stream.offset,
        "characters": characters,
        "documents": int(counts[tokenizer.end_of_text]),
        "sha256": whole.hexdigest(),
    }
