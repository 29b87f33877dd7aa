"""From text to rows of tokens: tokenizers, packing into memory-mapped shards, a loader that resumes at the exact row.

The stage itself is `tsdfm.tokens.run.run(TokensSettings(...))`. What reads the rows (and needs torch) is loaded on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsdfm.lazy import lazily
from tsdfm.tokens.settings import TokensSettings

if TYPE_CHECKING:
    from tsdfm.tokens.loader import Batch, Loader, prefetch
    from tsdfm.tokens.rows import TokenRows
    from tsdfm.tokens.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = ["Batch", "ByteTokenizer", "Loader", "TokenRows", "Tokenizer", "TokensSettings", "load_tokenizer", "prefetch"]

__getattr__ = lazily(
    __name__,
    {
        "Batch": "loader",
        "Loader": "loader",
        "prefetch": "loader",
        "TokenRows": "rows",
        "ByteTokenizer": "tokenizer",
        "Tokenizer": "tokenizer",
        "load_tokenizer": "tokenizer",
    },
)
