"""Tokenizers of other people's models, by the file of the `tokenizers` library that comes with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from tsdfm.errors import UserError
from tsdfm.store.files import read_json, read_text
from tsdfm.store.schema import Count
from tsdfm.tokens.bpe import byte_symbols, pair
from tsdfm.tokens.tokenizer import FILE, Tokenizer

PAIRS = ("vocab.json", "merges.txt")
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts words: letters with one sign before them, single digits, runs of signs, line ends, other spaces."""


class EngineTokenizer(Tokenizer):
    """A byte-level BPE whose words, special tokens and all, are cut as its own file says.

    The model has `size` tokens and [MASK], which is the last of ours and the id `mask` in the file: the token that has
    the last id there takes its place. Ids that the file does not have are empty. Special tokens are read in a text, and
    written as nothing.
    """

    kind = "engine"

    def __init__(self, file: str, *, size: int, mask: int, end_of_text: int, name: str = "engine") -> None:
        from tokenizers import Tokenizer as Engine

        self.file, self.size, self.mask, self.name = file, size, mask, name
        try:
            self._engine = Engine.from_str(file)
        except Exception as problem:  # the Rust side raises bare Exception
            raise ValueError(str(problem)) from None
        self._ours = {mask: size, size: mask}
        self._end, self.end_of_text = end_of_text, self._ours.get(end_of_text, end_of_text)
        self.pieces = [b""] * size
        for i, piece in self._spelled():
            if i > size:
                raise ValueError(f"its token {i} lies beyond the model's {size + 1} rows")
            if i != mask:
                self.pieces[self._ours.get(i, i)] = piece
        self.pieces[self.end_of_text] = b""

    def _spelled(self) -> Iterator[tuple[int, bytes]]:
        """The file's ids and their bytes; those of special tokens are none."""
        symbols, added = byte_symbols(), self._engine.get_added_tokens_decoder()
        for token, i in self._engine.get_vocab(with_added_tokens=True).items():
            if i in added:
                yield i, b"" if added[i].special else token.encode()
            elif symbols.keys() >= set(token):
                yield i, bytes(symbols[c] for c in token)
            else:
                raise ValueError(f"its token {token!r} is not written in byte symbols")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        made = [
            [self._ours.get(i, i) for i in found.ids]
            for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        ]
        if any(i >= self.size for ids in made for i in ids):
            raise UserError("the text spells the model's mask token: leave it out, or use --infill")
        return made

    def content(self) -> dict[str, Any]:
        about = {"size": self.size, "mask": self.mask, "end_of_text": self._end}
        return {"kind": self.kind, **about, "file": self.file}

    @classmethod
    def from_content(cls, saved: EngineFile) -> EngineTokenizer:
        sizes = {"size": saved["size"], "mask": saved["mask"], "end_of_text": saved["end_of_text"]}
        return cls(saved["file"], **sizes, name=saved.get("name", "engine"))


class EngineFile(TypedDict):
    """What our `tokenizer.json` holds of one; `mask` and `end_of_text` are ids of its `file`."""

    kind: Literal["engine"]
    file: str
    size: Count
    mask: Count
    end_of_text: Count
    name: NotRequired[str]


def engine_file(folder: Path) -> str:
    """The text of the library's own `tokenizer.json` in a folder, or one made of the two files of Qwen's pairs."""
    if (folder / FILE).is_file():
        return json.dumps(read_json(folder / FILE), ensure_ascii=False)
    if all((folder / name).is_file() for name in PAIRS):
        return qwen_file(folder)
    raise UserError(f"no {FILE} in {folder}, nor {' and '.join(PAIRS)}: fetch the model's tokenizer too")


def qwen_file(folder: Path) -> str:
    """The tokenizer of Qwen2's files: words by its pattern, and the added tokens that `tokenizer_config.json` names."""
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    vocab, path = read_json(folder / PAIRS[0]), folder / "tokenizer_config.json"
    lines = read_text(folder / PAIRS[1]).split("\n")
    merges = [pair(line) for line in lines if line and not line.startswith("#version")]
    engine = Engine(models.BPE(vocab=vocab, merges=merges))
    engine.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    engine.decoder = decoders.ByteLevel()
    plain = json.loads(engine.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = read_json(path).get("added_tokens_decoder", {}) if path.is_file() else {}
    for i, about in sorted(added.items(), key=lambda item: int(item[0])):
        known = {name: bool(about.get(name, usual)) for name, usual in flags.items()}
        plain["added_tokens"].append({"id": int(i), "content": about["content"], **known})
        plain["model"]["vocab"][about["content"]] = int(i)
    return json.dumps(plain, ensure_ascii=False)
