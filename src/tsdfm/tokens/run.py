"""The tokens stage: a corpus → tokenizer → rows in memory-mapped shards, with a manifest.

OUT/tokenizer/tokenizer.json     the tokenizer
OUT/train-00000.bin, …           raw little-endian uint16 or uint32, `length` tokens a row; with layout prompt, one more
                                 number: how many tokens at the front are given
OUT/manifest.json                written last: a folder that has one is complete
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tsdfm import terminal
from tsdfm.corpus.split import SPLITS
from tsdfm.corpus.store import count_documents, read_documents
from tsdfm.errors import UserError
from tsdfm.settings import to_dict
from tsdfm.store import lock
from tsdfm.store.files import sweep
from tsdfm.store.hashes import check_sizes, listed
from tsdfm.store.kinds import Input
from tsdfm.store.manifest import NAME, input_sha256, read_manifest, write_manifest
from tsdfm.store.parts import part_of, tidy
from tsdfm.tokens.choose import files_of
from tsdfm.tokens.pack import PROGRESS, clear, dtype_of, make_shards, rows_in
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import Tokenizer

FORMAT = 1  # of the shards; a change makes old and new runs different things


def run(settings: TokensSettings) -> Path:
    """Tokenise a corpus and return the folder of its rows. Run it again after a kill and it goes on where it was."""
    if settings.shards is not None:
        from tsdfm.tokens.taken import run_shards

        return _tell(settings.out, " (there already)" if run_shards(settings) else "")
    key, part = _key(settings), part_of(settings.part)
    if finished(settings.out, key):
        _tidy(settings.out)
        return _tell(settings.out, " (there already)")
    if part is not None:
        from tsdfm.tokens.parts import run_part

        return _tell(settings.out) if run_part(settings, key, part) else settings.out
    with lock.held(settings.out):
        if finished(settings.out, key):  # by another process, in between
            return _tell(settings.out, " (there already)")
        tokenizer, progress = make_shards(settings, key)
        if not rows_in(progress["train"]):
            clear(settings.out, progress)
            raise UserError(why_empty(settings, progress["train"]))
        finish(settings, key, tokenizer, progress)
    if settings.layout != "prompt" and next(read_documents(settings.text, "train")).prompt:
        terminal.say(
            f"note: {settings.text} has prompts, which layout {settings.layout} leaves out: see --layout prompt"
        )
    return _tell(settings.out)


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
    count_documents(settings.text, "train")  # says so if it is no corpus
    first = next(read_documents(settings.text, "train"), None) if settings.layout == "prompt" else None
    if first is not None and not first.prompt:
        raise UserError(f"{settings.text} has no prompts: make it with --prompt FIELD, or use layout document")
    plain = to_dict(settings)
    for name in ("corpus", "out", "workers", "tokenizer_files", "part", "shards", "valid_shards"):
        plain.pop(name)
    texts = {split: about["sha256"] for split, about in read_manifest(settings.text)["splits"].items()}
    files = input_sha256(place) if (place := files_of(settings)) is not None else None
    whole = json.dumps([FORMAT, plain, texts, files], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def finished(out: Path, key: str) -> bool:
    """Is it all there? What was made with something else is refused."""
    if not (out / NAME).is_file():
        return False
    found = read_manifest(out)
    if found.get("stage") == "tokens" and found.get("key") == key:
        check_sizes(out, listed(out))
        return True
    raise UserError(f"{out} already holds something made with other settings or texts: remove it or give another --out")


def why_empty(settings: TokensSettings, state: dict[str, Any]) -> str:
    """Why there are no rows to train on."""
    if settings.layout != "packed":
        packed = ", or use layout packed" if settings.layout == "document" else ""
        return f"no training document fits a row of {settings.length} tokens: raise length{packed}"
    tokens = state["dropped_tokens"]
    return (
        f"the training texts ({tokens} tokens) do not fill one row of {settings.length}: more text, or a lower length"
    )


def finish(
    settings: TokensSettings,
    key: str,
    tokenizer: Tokenizer,
    progress: dict[str, Any],
    *,
    dtype: np.dtype[Any] | None = None,
    inputs: Mapping[str, Path | Input] | None = None,
) -> None:
    """Write the manifest, and remove what is of use no more."""
    about = {"name": tokenizer.name, "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint}
    splits = {}
    for split in SPLITS:
        state = progress[split]
        splits[split] = {
            "rows": state.get("rows", rows_in(state)),
            "characters": state.get("characters", sum(shard["characters"] for shard in state["shards"])),
            "documents": state["documents"] if "documents" in state else count_documents(settings.text, split),
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
        "dtype": (dtype or dtype_of(tokenizer)).name,
        "splits": splits,
    }
    whole, read = replace(settings, part=None), inputs or {"corpus": settings.text}
    write_manifest(settings.out, stage="tokens", settings=whole, inputs=read, extra=extra)
    if skipped := sum(about["skipped_documents"] for about in splits.values()):
        terminal.say(f"note: {skipped:,} documents are longer than a row of {settings.length} tokens and are left out")
    if not splits["valid"]["rows"]:
        terminal.say(
            "note: no held-out rows, so nothing can be evaluated on them: hold out more text (tsdfm corpus --valid)"
        )
    _tidy(settings.out)


def _tidy(out: Path) -> None:
    """Remove what only unfinished rows need; a kill may have come before this."""
    if (out / PROGRESS).is_file():
        (out / PROGRESS).unlink(missing_ok=True)
    sweep(out)
    tidy(out)
