"""Tokenizers: bytes, and byte-level BPE (trained here, or GPT-2's).

Any UTF-8 text comes back exactly: `decode(encode(text)) == text`. Nothing is normalised, no space is put in front, and
the end-of-text token has no spelling, so that no text can contain it. [MASK] is not a token of these; the flow adds it
after the last one.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tsdfm.errors import UserError

FILE = "tokenizer.json"
UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()  # what an id outside the vocabulary ([MASK], say) decodes to


COUNTED = 1 << 20  # ids that are counted at a time
SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, and not to GPT-2's way of cutting words


class Tokenizer(abc.ABC):
    """Text to token ids and back.

    `pieces[i]` are the bytes of token i (none for end-of-text); decoding joins them.
    """

    kind: str
    name: str
    end_of_text: int
    pieces: list[bytes]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, end-of-text among them and [MASK] not."""
        return len(self.pieces)

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text; end-of-text is not appended."""

    @abc.abstractmethod
    def content(self) -> dict[str, Any]:
        """All that defines the tokenizer, as plain values."""

    def encode(self, text: str) -> list[int]:
        """The token ids of one text; end-of-text is not appended."""
        return self.encode_batch([text])[0]

    def encode_open(self, text: str) -> tuple[list[int], bool]:
        """The ids of a text that goes on with a word, and whether its last space is left to the token that follows.

        A word of a byte-level BPE carries the space before it, so `"Mia has "` has the ids of `"Mia has"` and a space
        to come. Other white space at the end is a token of its own before a word. Where no token is a space with a
        word behind it, as with bytes, the space is given like any other character.
        """
        if text.endswith(" ") and self.opening.any():
            return self.encode(text[:-1]), True
        if text[-1:].isspace() and text[-1] not in SEPARATORS:
            return [*self.encode(text[:-1]), *self.encode(text[-1])], False
        return self.encode(text), False

    @functools.cached_property
    def opening(self) -> NDArray[np.bool_]:
        """Tokens [V] that are one space and then something else than white space."""
        return np.array([p[:1] == b" " and not starts_blank(p[1:]) and len(p) > 1 for p in self.pieces])

    @functools.cached_property
    def blank_start(self) -> NDArray[np.bool_]:
        """Tokens [V] that begin with white space."""
        return np.array([starts_blank(piece) for piece in self.pieces])

    @functools.cached_property
    def blank_end(self) -> NDArray[np.bool_]:
        """Tokens [V] that end with white space."""
        return np.array([ends_blank(piece) for piece in self.pieces])

    def encode_arrays(self, texts: Sequence[str], dtype: DTypeLike) -> list[NDArray[Any]]:
        """As `encode_batch`, each text's ids as an array."""
        return [np.array(ids, dtype=dtype) for ids in self.encode_batch(texts)]

    def decode_bytes(self, ids: Any, end: bytes = b"") -> bytes:
        """The bytes of ids (a list, array or tensor of one dimension); `end` stands for each end-of-text."""
        pieces, last, stop = self.pieces, len(self.pieces), self.end_of_text
        return b"".join([end if i == stop else pieces[i] if 0 <= i < last else UNKNOWN for i in _numbers(ids)])

    def decode(self, ids: Any, end: str = "") -> str:
        """The text of ids. Never fails: bytes that are no UTF-8 become U+FFFD; `end` stands for each end-of-text."""
        return self.decode_bytes(ids, end.encode()).decode("utf-8", "replace")

    def first_document(self, ids: Any) -> str:
        """The text before the first end-of-text."""
        stop = self.end_of_text
        return self.decode(itertools.takewhile(lambda i: i != stop, _numbers(ids)))

    def documents(self, ids: Any) -> list[str]:
        """The texts between the end-of-text tokens of a row; the empty ones (padding) are left out."""
        numbers = np.array(_numbers(ids), dtype=np.int64)
        parts = np.split(numbers, np.flatnonzero(numbers == self.end_of_text))
        return [text for text in map(self.decode, parts) if text]

    @functools.cached_property
    def characters(self) -> NDArray[np.int64]:
        """Characters each token starts [V]: `characters[ids].sum()` counts those of any ids exactly.

        A character belongs to the token that holds its first byte, so a row cut inside one still counts whole numbers.
        """
        return np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.pieces], dtype=np.int64)

    @functools.cached_property
    def whole(self) -> NDArray[np.int64]:
        """Characters of each token [V] that is text by itself; −1 of one that is a part of a character."""
        return np.array([text_size(piece) for piece in self.pieces], dtype=np.int64)

    def count(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """How often each token occurs [V] among ids [n], in little memory."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for first in range(0, len(ids), COUNTED):
            counts += np.bincount(ids[first : first + COUNTED].astype(np.int64), minlength=self.vocab_size)
        return counts

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokenizer's content: equal exactly when two tokenizers are the same map."""
        plain = json.dumps(self.content(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write `folder/tokenizer.json` in one atomic step."""
        from tsdfm.store.files import write_json

        return write_json(Path(folder) / FILE, {"name": self.name, "fingerprint": self.fingerprint, **self.content()})


class ByteTokenizer(Tokenizer):
    """256 bytes and end-of-text: 257 tokens, nothing to train."""

    kind = "byte"
    name = "byte"

    def __init__(self) -> None:
        self.pieces = [bytes([byte]) for byte in range(256)] + [b""]
        self.end_of_text = 256

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(utf8(text)) for text in texts]

    def encode_arrays(self, texts: Sequence[str], dtype: DTypeLike) -> list[NDArray[Any]]:
        return [np.frombuffer(utf8(text), dtype=np.uint8).astype(dtype) for text in texts]

    def content(self) -> dict[str, Any]:
        return {"kind": "byte"}


def _numbers(ids: Any) -> list[int]:
    """A list of ids from a list, an array or a tensor of one dimension."""
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def text_size(piece: bytes) -> int:
    """The characters of UTF-8 bytes, or −1 if they are none."""
    try:
        return len(piece.decode())
    except UnicodeDecodeError:
        return -1


def starts_blank(piece: bytes) -> bool:
    """Is the first character white space?"""
    return piece.decode("utf-8", "replace")[:1].isspace()


def ends_blank(piece: bytes) -> bool:
    """Is the last character white space?"""
    return piece.decode("utf-8", "replace")[-1:].isspace()


def utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text, or one clear line if it has none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UserError(
            "the text is not valid Unicode (half a surrogate pair, or bytes that are not UTF-8): convert it to UTF-8"
        ) from None


def saved_at(folder: str | Path) -> Path | None:
    """The tokenizer's file in `folder`, or in the tokenizer's own folder there."""
    places = [Path(folder) / FILE, Path(folder) / "tokenizer" / FILE]
    return next((place for place in places if place.is_file()), None)


def is_ours(folder: str | Path) -> bool:
    """Does `folder` hold what `save` writes? The hub's files of the same name are another thing."""
    from tsdfm.store.files import read_json

    path = saved_at(folder)
    return path is not None and "fingerprint" in read_json(path)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer that `save` wrote into `folder`; a tokens folder's own is found too."""
    from tsdfm.store.files import read_json
    from tsdfm.store.schema import checked
    from tsdfm.tokens.bpe import PairFile, PairTokenizer
    from tsdfm.tokens.engine import EngineFile, EngineTokenizer

    path = saved_at(folder)
    if path is None:
        raise UserError(f"no {FILE} in {folder}: give a folder that the tokens stage made")
    saved, mend = read_json(path), "make the tokens again, or restore it from a copy"
    try:
        made: Tokenizer = ByteTokenizer()
        if saved.get("kind") == EngineTokenizer.kind:
            made = EngineTokenizer.from_content(checked(saved, EngineFile, path, mend))
        elif saved.get("kind") != "byte":
            made = PairTokenizer.from_content(checked(saved, PairFile, path, mend))
    except ValueError as problem:
        raise UserError(f"{path} is damaged ({problem}): {mend}") from None
    if made.fingerprint != saved.get("fingerprint"):
        raise UserError(f"{path} is damaged (its fingerprint does not match): {mend}")
    return made
