"""How a corpus becomes rows of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Settings, option, required
from tsdfm.store.parts import part_of

Layout = Literal["packed", "document", "prompt"]
SMALLEST_BPE = 257  # every byte and end-of-text


@dataclass(frozen=True, kw_only=True)
class TokensSettings(Settings):
    """The tokens stage: which tokenizer, and how documents are laid out in rows of equal length."""

    corpus: Path | None = option(None, "the corpus folder")
    shards: Path | None = option(
        None,
        "instead of a corpus, ready-made token shards, taken where they lie: a file, a folder or a pattern of .ds "
        "(datatrove, nanotron), .bin with .idx (Megatron) or .bin (llm.c, nanoGPT)",
    )
    valid_shards: Path | None = option(None, "ready-made shards that are held out")
    out: Path = required("folder for the tokens")
    tokenizer: Literal["bpe", "byte", "gpt2"] = option("bpe", "byte-level BPE trained on the corpus, bytes, or GPT-2's")
    vocab_size: int = option(8192, "tokens of a BPE trained here, end-of-text among them", low=2, high=2**20)
    tokenizer_files: ModelPath | None = option(
        None,
        "a tokens folder, a run or a shipped name, whose tokenizer to use again; gpt2: also a folder "
        "with encoder.json and vocab.bpe",
    )
    train_documents: int = option(20_000, "documents, spread over the corpus, that a BPE is trained on", low=1)
    length: int = option(256, "tokens in a row", low=1, high=2**20)
    layout: Layout = option(
        "packed",
        "packed: documents joined and cut into rows; document: one in each row, after an anchor, padded; "
        "prompt: the same with each document's prompt before it, which is given and never learned",
    )
    shard_rows: int = option(
        65_536, "rows in a shard file; a killed run loses at most the shard it was in", low=1, high=2**24
    )
    workers: int = option(
        0, "threads that tokenise (0: one for each core); the result does not depend on it", low=0, high=1024
    )
    part: str | None = option(None, "make one part of several, i/n from 0/n to (n-1)/n, each by a process of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        part_of(self.part)
        if (self.corpus is None) == (self.shards is None):
            raise UserError("tokens come from a corpus or from shards: give --corpus FOLDER or --shards PATH")
        if self.valid_shards is not None and self.shards is None:
            raise UserError("valid_shards go with shards: of a corpus, texts are held out by tsdfm corpus --valid")
        if self.shards is not None and (self.layout != "packed" or self.part is not None):
            raise UserError("ready-made shards are taken as they are: leave out layout and part")
        if self.tokenizer == "bpe" and self.vocab_size < SMALLEST_BPE:
            raise UserError(f"a byte-level BPE needs a vocab_size of at least {SMALLEST_BPE}, not {self.vocab_size}")
        if self.tokenizer == "byte" and self.tokenizer_files is not None:
            raise UserError("the byte tokenizer has no files: leave tokenizer_files out")

    @property
    def text(self) -> Path:
        """The corpus folder."""
        assert self.corpus is not None  # or there are shards, which are not made from text here
        return self.corpus
