"""Byte-level BPE: the map itself, training one, and GPT-2's from its two files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from tsdfm.errors import UserError
from tsdfm.ranges import shown
from tsdfm.store.files import read_any_json, read_text
from tsdfm.store.schema import Count, Wrong, check
from tsdfm.tokens.tokenizer import Tokenizer, utf8

GPT2_END = "<|endoftext|>"
GPT2_HUB = "openai-community/gpt2"
GPT2_TOKENS = 50257
GPT2_FINGERPRINT = "59959c7680e0264cb3f8842782858c6f61dab289e97384d599ad9f8d432055a8"
"""Of the tokenizer that its two files make (sha256 1961396… of vocab.json, 1ce1664… of merges.txt)."""
VOCAB_NAMES = ("encoder.json", "vocab.json")
MERGE_NAMES = ("vocab.bpe", "merges.txt")


def byte_symbols() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it prints, else the next free character from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(rest)}


class PairTokenizer(Tokenizer):
    """Byte-level BPE with GPT-2's way of cutting words.

    `vocab` lists the tokens by id in GPT-2's byte symbols; `end_of_text` is one of these ids or the one after the last.
    """

    kind = "bpe"

    def __init__(
        self, vocab: Sequence[str], merges: Sequence[tuple[str, str]], end_of_text: int, name: str = "bpe"
    ) -> None:
        self.vocab, self.merges = list(vocab), [(a, b) for a, b in merges]
        self.end_of_text, self.name = end_of_text, name
        symbols = byte_symbols()
        if end_of_text == len(self.vocab):
            self.vocab.append(GPT2_END)
        spelled = {token: i for i, token in enumerate(self.vocab) if i != end_of_text}
        missing = sorted(set(symbols) - set(spelled))
        if missing or len(spelled) != len(self.vocab) - 1:
            raise ValueError(f"the vocabulary lacks {len(missing)} of the 256 bytes, or has a token twice")
        if strange := next((token for token in spelled if not symbols.keys() >= set(token)), None):
            raise ValueError(f"the token {shown(strange)} is not written in byte symbols")
        self.pieces = [
            b"" if i == end_of_text else bytes(symbols[c] for c in token) for i, token in enumerate(self.vocab)
        ]
        self._engine = _engine(spelled, self.merges)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            if not text.isascii():
                utf8(text)
        # The engine lets go of Python's lock in encode_batch_fast (not in encode), so threads tokenise side by side.
        return [found.ids for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def content(self) -> dict[str, Any]:
        merges = [f"{a} {b}" for a, b in self.merges]
        return {"kind": "bpe", "end_of_text": self.end_of_text, "vocab": self.vocab, "merges": merges}

    @classmethod
    def from_content(cls, saved: PairFile) -> PairTokenizer:
        merges = [pair(line) for line in saved["merges"]]
        return cls(saved["vocab"], merges, saved["end_of_text"], saved.get("name", "bpe"))


class PairFile(TypedDict):
    """What `tokenizer.json` holds of one."""

    kind: Literal["bpe"]
    vocab: list[str]
    merges: list[str]
    end_of_text: Count
    name: NotRequired[str]


def pair(line: str) -> tuple[str, str]:
    """The two symbols of a line of merges."""
    parts = line.split(" ")
    if len(parts) != 2:
        raise ValueError(f"{shown(line)} is no pair of symbols")
    return parts[0], parts[1]


def _engine(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """The `tokenizers` object. End-of-text is not in it, so its spelling in a text is only text."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models, pre_tokenizers

    try:
        engine = Engine(models.BPE(vocab=vocab, merges=merges))
    except Exception as problem:  # the Rust side raises bare Exception
        raise ValueError(str(problem)) from None
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return engine


def train_bpe(texts: Iterable[str], vocab_size: int) -> PairTokenizer:
    """Train byte-level BPE on texts. A small corpus may not have enough pairs for `vocab_size`; then it has fewer."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models, pre_tokenizers, trainers

    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,  # the last id is end-of-text
        initial_alphabet=sorted(byte_symbols()),
        special_tokens=[],
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    model = json.loads(engine.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [pair(m) if isinstance(m, str) else (m[0], m[1]) for m in model["merges"]]
    return PairTokenizer(vocab, merges, len(vocab), f"bpe-{len(vocab) + 1}")


def gpt2(folder: str | Path | None = None, *, flag: str = "--tokenizer-files") -> PairTokenizer:
    """GPT-2's tokenizer from `encoder.json` and `vocab.bpe` (or the hub's names for them), or from the hub.

    `flag` is what takes a folder of them where this is asked for.
    """
    vocab_path, merges_path = _local_files(Path(folder)) if folder is not None else _hub_files(flag)
    ids, lines = read_any_json(vocab_path), read_text(merges_path).split("\n")
    try:
        check(dict[str, Count], ids)
        vocab = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in vocab] != list(range(len(vocab))):
            raise Wrong("its ids have gaps")
        merges = [pair(line) for line in lines if line and not line.startswith("#version")]
        return PairTokenizer(vocab, merges, ids.get(GPT2_END, len(vocab)), "gpt2")
    except ValueError as problem:
        raise UserError(f"{vocab_path} and {merges_path.name} are not a byte-level BPE ({problem})") from None


def _local_files(folder: Path) -> tuple[Path, Path]:
    found = []
    for names in (VOCAB_NAMES, MERGE_NAMES):
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise UserError(f"GPT-2's tokenizer needs {names[0]} (or {names[1]}) in {folder}")
        found.append(path)
    return found[0], found[1]


def _hub_files(flag: str) -> tuple[Path, Path]:
    """The two files, from the hub's cache if they are in it."""
    from tsdfm.store.hub import out_of_reach

    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UserError("fetching GPT-2's tokenizer needs the hub client: pip install 'tsdfm[hub]'") from None

    def fetch(local: bool) -> tuple[Path, Path]:
        found = [Path(hf_hub_download(GPT2_HUB, name, local_files_only=local)) for name in ("vocab.json", "merges.txt")]
        return found[0], found[1]

    with contextlib.suppress(Exception):  # they are not there yet
        return fetch(local=True)
    instead = f"give its folder as {flag}"
    if reason := out_of_reach():
        raise UserError(f"GPT-2's tokenizer is not on this machine, and {reason}: {instead}")
    try:
        return fetch(local=False)
    except Exception as problem:  # network, permission: the client has a class for each
        raise UserError(f"could not fetch GPT-2's tokenizer ({type(problem).__name__}): {instead}") from problem
