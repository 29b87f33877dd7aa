"""One part of the tokens of a corpus, and all of them joined by a manifest.

OUT/train-00003-of-00008-00000.bin, …    shards of the documents ⌊D·i/n⌋ to ⌊D·(i+1)/n⌋ of the split
OUT/part-00003-of-00008.json             how far the part is; gone once the manifest names the shards of all parts

With layout `packed` a part's last shard ends with its last document and not with a whole row. Row r of the joined parts
is tokens r·L to (r+1)·L of all shards one after another, so a row may begin in one part and end in the next. The rows
are therefore those that one process would have made.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdfm.errors import UserError
from tsdfm.store.files import write_json
from tsdfm.store.hashes import SPLITS, stored
from tsdfm.store.kinds import TokensProgress
from tsdfm.store.parts import Part, join, mine, tidy
from tsdfm.tokens.pack import clear, dtype_of, make_shards, rows_in
from tsdfm.tokens.run import finish, why_empty
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer


def run_part(settings: TokensSettings, key: str, part: Part) -> bool:
    """Make the shards of one part, and the manifest if all others are there. Are the tokens whole now?"""
    with mine(settings.out, part):
        _, progress = make_shards(settings, key, part)
        write_json(settings.out / part.record, {**progress, "done": True})
    return join(settings.out, part, TokensProgress, partial(_join, settings, key))


def _join(settings: TokensSettings, key: str, records: list[dict[str, Any]]) -> None:
    """The manifest of all parts, as if they were one run."""
    out, tokenizer = settings.out, load_tokenizer(settings.out)
    dtype = dtype_of(tokenizer)
    progress = {split: joined(settings, [record[split] for record in records], tokenizer, dtype) for split in SPLITS}
    if not progress["train"].get("rows", rows_in(progress["train"])):
        clear(out, progress)
        tidy(out)
        raise UserError(why_empty(settings, progress["train"]))
    finish(settings, key, tokenizer, progress)


def joined(
    settings: TokensSettings, states: list[dict[str, Any]], tokenizer: Tokenizer, dtype: np.dtype[Any]
) -> dict[str, Any]:
    """The states of all parts of a split as one; the tokens at the very end that fill no row are dropped."""
    shards = [shard for state in states for shard in state["shards"]]
    whole = {
        "shards": shards,
        **{name: sum(s[name] for s in states) for name in ("dropped_tokens", "skipped_documents")},
    }
    if settings.layout != "packed":
        return whole
    rows, rest = divmod(sum(stored(shard, settings.length) for shard in shards), settings.length)
    tail = last_tokens(settings.out, shards, rest, dtype)
    characters = sum(shard["characters"] for shard in shards) - int(tokenizer.characters[tail].sum())
    return {**whole, "rows": rows, "characters": characters, "dropped_tokens": rest}


def last_tokens(folder: Path, shards: list[dict[str, Any]], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The last `count` tokens of some shards one after another [count]."""
    found: list[NDArray[Any]] = [np.empty(0, dtype)]
    for shard in reversed(shards):
        if count <= 0:
            break
        here = np.memmap(folder / shard["file"], dtype, mode="r", offset=shard.get("offset", 0))[-count:]
        found.insert(0, here)
        count -= len(here)
    return np.concatenate(found)
