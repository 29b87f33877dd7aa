"""From text to rows of tokens: tokenizers, packing into memory-mapped shards, a loader that resumes at the exact row.

The stage itself is `tsdfm.tokens.run.run(TokensSettings(...))`. What reads the rows (and needs torch) is loaded on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tsdfm.tokens.settings import TokensSettings

if TYPE_CHECKING:
    from tsdfm.tokens.loader import Batch, Loader, prefetch
    from tsdfm.tokens.rows import TokenRows
    from tsdfm.tokens.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = ["Batch", "ByteTokenizer", "Loader", "TokenRows", "Tokenizer", "TokensSettings", "load_tokenizer", "prefetch"]

_HOME = {
    "Batch": "loader",
    "Loader": "loader",
    "prefetch": "loader",
    "TokenRows": "rows",
    "ByteTokenizer": "tokenizer",
    "Tokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"tsdfm.tokens.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tsdfm.tokens' has no attribute {name!r}")
