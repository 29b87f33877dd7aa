"""The storyteller: a small language model of children's stories as a world whose law is known.

    teller = storyteller_in("storyteller")          # a folder with stories15M.bin and tokenizer.bin of llama2.c
    for text in teller.stories(seed=0, limit=100): ...

It is a pre-norm decoder with RMSNorm, rotary positions in adjacent pairs, SwiGLU and a tied head, as llama2.c has it.
Its weights are rounded to float16 and computed with in float32. They may also lie in storyteller.safetensors, which has
its sizes as metadata. A story is drawn token by token from p = softmax(logits / 0.9), from the start
token 1 to the first token ≤ 2, which ends it. Draws that do not end within the model's positions are thrown away. So a
story x_1 … x_n has the probability

    P(x) = Π_i p(x_i | x_<i) · p(end | x) / Z,        p(end | x) = Σ_{e ≤ 2} p(e | x),

where Z is the share of draws that end in time.

Shapes: B rows, n tokens, D width, H heads, E = D/H head size, M positions.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tsdfm.errors import UserError
from tsdfm.settings import path_from
from tsdfm.store.files import file_sha256

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WEIGHTS, PUBLIC, TOKENIZER = "storyteller.safetensors", "stories15M.bin", "tokenizer.bin"
SIZES = ("dim", "heads", "layers", "positions", "vocab")
START, ENDS, FIRST_BYTE = 1, 3, 3  # ids 0, 1 and 2 end a story; the raw bytes follow them
TEMPERATURE = 0.9
WORD = re.compile(r" ?\S+|\s")
BATCH = {"cuda": 4096, "cpu": 64}  # rows drawn side by side
SHARE_THAT_ENDS = {"704acf88841ef17b28219779d38f579535659e7f471da86aba58db5a5ae5c926": 0.8839}
"""Z by `Storyteller.law`, from 320 000 draws; for other weights it is taken to be 1."""


class Piece(NamedTuple):
    """A token of a text, and how many characters begin in it."""

    id: int
    characters: int


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of text by id, with the score of merging two into it: the best goes first, the leftmost of equals."""

    pieces: list[bytes]
    scores: list[float]
    words: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict, repr=False)
    """Of words that were read: their tokens, and how many characters begin in each."""

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of a piece; a raw byte is only a fallback."""
        raw = range(FIRST_BYTE, FIRST_BYTE + 256)
        found = {self.pieces[i]: i for i in raw if i < len(self.pieces)}
        for i, piece in enumerate(self.pieces):
            if piece not in found or found[piece] in raw:
                found[piece] = i
        return found

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens of a text, which is read as if a space stood before it, and how many characters begin in each."""
        known = self.words
        found = [known.get(word) or self._word(word) for word in WORD.findall(f" {text}")]
        ids = [i for word, _ in found for i in word]
        characters = [many for _, sizes in found for many in sizes]
        if characters:
            characters[0] -= 1
        return ids, characters

    def _word(self, word: str) -> tuple[list[int], list[int]]:
        parts = [piece for character in word for piece in self._character(character)]
        while (best := self._best(parts)) is not None:
            at, joined = best
            parts[at : at + 2] = [Piece(joined, parts[at].characters + parts[at + 1].characters)]
        self.words[word] = [piece.id for piece in parts], [piece.characters for piece in parts]
        return self.words[word]

    def _character(self, character: str) -> list[Piece]:
        raw = character.encode()
        if raw in self.ids:
            return [Piece(self.ids[raw], 1)]
        return [Piece(FIRST_BYTE + byte, int(first == 0)) for first, byte in enumerate(raw)]

    def _best(self, parts: list[Piece]) -> tuple[int, int] | None:
        """Where to merge, and into which id."""
        pairs = ((at, self.pieces[parts[at].id] + self.pieces[parts[at + 1].id]) for at in range(len(parts) - 1))
        known = [(self.scores[self.ids[pair]], -at, self.ids[pair]) for at, pair in pairs if pair in self.ids]
        if not known:
            return None
        _, at, joined = max(known)
        return -at, joined

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without the space before it."""
        raw = range(FIRST_BYTE, FIRST_BYTE + 256)
        pieces = (bytes([i - FIRST_BYTE]) if i in raw else self.pieces[i] for i in ids)
        return b"".join(pieces).decode("utf8", "replace").removeprefix(" ")


def read_vocabulary(path: Path) -> Vocabulary:
    """A tokenizer.bin: the longest piece's length, then score, length and bytes of each piece."""
    raw, at, pieces, scores = path.read_bytes(), 4, [], []
    try:
        while at < len(raw):
            score, size = struct.unpack_from("<fi", raw, at)
            if not 0 <= size <= len(raw) - at - 8:
                raise struct.error("a piece is cut short")
            pieces.append(raw[at + 8 : at + 8 + size])
            scores.append(score)
            at += 8 + size
    except struct.error as problem:
        raise UserError(f"{path} is no tokenizer of a storyteller ({problem}): fetch it again") from None
    return Vocabulary(pieces, scores)


@dataclass(frozen=True, eq=False)
class Storyteller:
    """The model. `weights` are float32 on one device; `file` is the name of what they were read from."""

    weights: dict[str, Tensor] = field(repr=False)
    sizes: dict[str, int]
    vocabulary: Vocabulary = field(repr=False)
    file: str
    sha256: str

    @property
    def device(self) -> torch.device:
        return self.weights["embedding"].device

    @property
    def positions(self) -> int:
        return self.sizes["positions"]

    @property
    def share_that_ends(self) -> float:
        """Z."""
        return SHARE_THAT_ENDS.get(self.law, 1.0)

    @cached_property
    def law(self) -> str:
        """sha256 of the weights in float16 by the order of their names: the same whichever file they were read from."""
        whole = hashlib.sha256()
        for _, tensor in sorted(self.weights.items()):
            whole.update(tensor.half().cpu().numpy().tobytes())
        return whole.hexdigest()

    def hidden(self, tokens: Tensor, cache: tuple[Tensor, Tensor] | None = None, at: int = 0) -> Tensor:
        """Final hidden states [B, n, D] of tokens [B, n] at positions `at` and on.

        With a cache, keys and values [layers, B, H, M, E], tokens see what it holds before `at`.
        """
        import torch.nn.functional as F

        w, (rows, n) = self.weights, tokens.shape
        cos, sin = (turn[at : at + n] for turn in self._turns)
        x = w["embedding"][tokens]
        for i in range(self.sizes["layers"]):
            h = _norm(x, w["attention_norm"][i])
            q, k, v = (
                (h @ w[name][i].T).view(rows, n, self.sizes["heads"], -1).transpose(1, 2) for name in ("wq", "wk", "wv")
            )
            q, k = _turn(q, cos, sin), _turn(k, cos, sin)
            if cache is not None:
                for held, new in zip(cache, (k, v), strict=True):
                    held[i, :, :, at : at + n] = new
                k, v = (held[i, :, :, : at + n] for held in cache)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
            x = x + seen.transpose(1, 2).reshape(rows, n, -1) @ w["wo"][i].T
            h = _norm(x, w["ffn_norm"][i])
            x = x + (F.silu(h @ w["w1"][i].T) * (h @ w["w3"][i].T)) @ w["w2"][i].T
        return _norm(x, w["final_norm"])

    @cached_property
    def _turns(self) -> tuple[Tensor, Tensor]:
        """cos and sin [M, E/2] of the rotary angles."""
        import torch

        size = self.sizes["dim"] // self.sizes["heads"]
        rates = 1e4 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angle = torch.outer(torch.arange(self.positions, dtype=torch.float32), rates).to(self.device)
        return angle.cos(), angle.sin()

    def logits(self, tokens: Tensor, cache: tuple[Tensor, Tensor] | None = None, at: int = 0) -> Tensor:
        """Logits [B, n, V] of the law a story is drawn from: already divided by 0.9, and all ends are the token 1."""
        import torch

        logits = self.hidden(tokens, cache, at) @ self.weights["embedding"].T / TEMPERATURE
        end = logits[..., :ENDS].logsumexp(-1, keepdim=True)
        none = torch.full_like(end, -torch.inf)
        return torch.cat([none, end, none, logits[..., ENDS:]], -1)

    def stories(self, seed: int, limit: int, *, batch: int | None = None) -> Iterator[str]:
        """`limit` stories. What draw number i gives depends on the seed and on i alone, up to rounding."""
        size, first, made = batch or BATCH.get(self.device.type, BATCH["cpu"]), 0, 0
        while made < limit:
            for row in self.draws(seed, range(first, first + size)):
                if row[-1] == START and made < limit:
                    made += 1
                    yield self.vocabulary.decode(row[:-1])
            first += size

    def draws(self, seed: int, numbers: range) -> list[list[int]]:
        """The tokens of some draws, each up to its end; those that do not end in time have none."""
        import torch

        u = np.stack([np.random.Generator(np.random.Philox(key=[seed, i])).random(self.positions) for i in numbers])
        uniforms, rows, heads = torch.from_numpy(u).to(self.device), len(numbers), self.sizes["heads"]
        shape = (self.sizes["layers"], rows, heads, self.positions, self.sizes["dim"] // heads)
        cache = (torch.zeros(shape, device=self.device), torch.zeros(shape, device=self.device))
        tokens = torch.full((rows, 1), START, device=self.device)
        with torch.no_grad():
            for at in range(self.positions):
                law = self.logits(tokens[:, -1:], cache, at)[:, 0].double().softmax(-1).cumsum(-1)
                drawn = torch.searchsorted(law, uniforms[:, at, None] * law[:, -1:], right=True)
                tokens = torch.cat([tokens, drawn.clamp(max=law.shape[1] - 1)], 1)
                if at % 16 == 15 and bool((tokens[:, 1:] == START).any(1).all()):
                    break
        found = tokens[:, 1:].tolist()
        return [row[: row.index(START) + 1] if START in row else row for row in found]


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm: x / √(mean x² + ε) · gain."""
    import torch

    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, n, E] with the pairs (0, 1), (2, 3), … turned by their angles [n, E/2]."""
    import torch

    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def weights_of(which: str) -> Path:
    """The weights in the folder that `storyteller:FOLDER` names, beside which the tokenizer lies."""
    if not which:
        raise UserError("a storyteller is named with its folder: storyteller:FOLDER")
    folder = path_from(which, "a storyteller")
    if (found := weights_in(folder)) is None:
        raise UserError(f"{folder} holds no storyteller: {PUBLIC} (or {WEIGHTS}) is missing")
    if not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder} holds no storyteller: {TOKENIZER} is missing")
    return found


def weights_in(folder: Path) -> Path | None:
    """The file of a storyteller's weights in a folder, if there is one."""
    return next((folder / name for name in (WEIGHTS, PUBLIC) if (folder / name).is_file()), None)


def teller_from(which: str) -> Storyteller:
    """The storyteller of a folder, on a GPU where there is one: drawing is far quicker there."""
    import torch

    return storyteller_in(weights_of(which).parent, "cuda" if torch.cuda.is_available() else "cpu")


def storyteller_in(folder: str | Path, device: str | torch.device = "cpu") -> Storyteller:
    """The storyteller whose weights and tokenizer lie in a folder."""
    import torch
    from safetensors import SafetensorError, safe_open

    path = weights_of(str(folder))
    if path.name == PUBLIC:
        sizes, weights = read_public(path)
    else:
        try:
            with safe_open(path, "pt") as file:
                sizes = {name: int(value) for name, value in (file.metadata() or {}).items()}
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError) as problem:
            raise UserError(f"{path} cannot be read ({problem}): fetch it again") from None
    vocabulary = read_vocabulary(path.with_name(TOKENIZER))
    _check(sizes, weights, len(vocabulary.pieces), path)
    weights = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
    return Storyteller(weights, sizes, vocabulary, path.name, file_sha256(path))


def read_public(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Sizes and weights, rounded to float16, of a file of llama2.c in its first format.

    Seven int32: dim, hidden, layers, heads, heads of keys, vocab (below 0: the head has weights of its own), positions.
    Then float32: the tensors in the order of `_shapes`, and cosines and sines of the positions, which follow from them.
    """
    import torch

    raw = path.read_bytes()
    header = struct.unpack_from("<7i", raw) if len(raw) >= 28 else (0,) * 7
    sizes = dict(zip(("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "positions"), header, strict=True))
    if min(header) < 1 or sizes["kv_heads"] != sizes["heads"] or sizes["dim"] % (2 * sizes["heads"]):
        raise UserError(f"{path} is no llama2.c model in its first format with a tied head: fetch stories15M.bin again")
    shapes = _shapes(sizes)
    turns = sizes["positions"] * sizes["dim"] // sizes["heads"]
    if len(raw) != 28 + 4 * (sum(map(prod, shapes.values())) + turns):
        raise UserError(f"{path} has {len(raw):,} bytes, which does not fit its sizes: fetch it again")
    numbers, weights = np.frombuffer(raw, "<f4", offset=28), dict[str, "Tensor"]()
    for name, shape in shapes.items():
        weights[name] = torch.from_numpy(numbers[: prod(shape)].astype(np.float16)).view(shape)
        numbers = numbers[prod(shape) :]
    return sizes, weights


def _shapes(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor."""
    d, f, n, v = sizes["dim"], sizes["hidden"], sizes["layers"], sizes["vocab"]
    square, up = (n, d, d), (n, f, d)
    attention = {"attention_norm": (n, d), "wq": square, "wk": square, "wv": square, "wo": square}
    mlp = {"ffn_norm": (n, d), "w1": up, "w2": (n, d, f), "w3": up}
    return {"embedding": (v, d), **attention, **mlp, "final_norm": (d,)}


def _check(sizes: dict[str, int], weights: dict[str, Tensor], pieces: int, path: Path) -> None:
    """Refuse a file whose sizes, tensors and vocabulary are not one model's."""
    missing = [name for name in (*SIZES, "hidden") if name not in sizes]
    if missing:
        raise UserError(f"{path} is no storyteller: its metadata lacks {', '.join(missing)}")
    if min(sizes.values()) < 1:
        raise UserError(f"{path} is no storyteller: its sizes are at least 1")
    shapes, v = _shapes(sizes), sizes["vocab"]
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in {*shapes, *found} if shapes.get(name) != found.get(name))
    if wrong or sizes["dim"] % (2 * sizes["heads"]) or pieces != v:
        what = f"{wrong[0]} has the shape {found.get(wrong[0])}" if wrong else f"the tokenizer has {pieces} pieces"
        raise UserError(f"{path} does not fit its metadata: {what}")
    if odd := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise UserError(f"{odd[0]} of {path} has numbers that are not finite: fetch it again")
