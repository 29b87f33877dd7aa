"""Which split a document belongs to: a matter of its text alone."""

from __future__ import annotations

import hashlib

SPLITS = ("train", "valid")


def split_of(text: str, valid: float, seed: int = 0) -> str:
    """`valid` for a share `valid` of all texts, else `train`.

    The text is hashed to a number in [0, 1): equal texts are never in two splits, and neither the order of documents
    nor the presence of others moves one. A text held out at 1 % is also held out at 2 %.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)).digest()
    return "valid" if int.from_bytes(digest, "little") < valid * 2.0**64 else "train"
