"""A causal language model as the start of a flow model.

A causal model of the Llama family, without its mask, is our decoder; a condition that starts at zero tells it the time.
Training makes a flow model of it far sooner than of fresh weights (docs/log.md). A causal model speaks at position i of
the token i + 1, so the network is one whose answers are shifted by one.

The flow model has the vocabulary of a tokens folder. A token that the causal model has too takes its rows. Any other is
spelled in the causal model's tokens, the longest first: its embedding is their mean, and its row of the head is that of
the first one, which is what a causal model would say next. End-of-text is the token that starts the model's texts, and
[MASK] the mean of all.

A start may `grow`: behind each block stand copies of it that add nothing, since what they write is zero at first (Wu et
al., 2024, "LLaMA Pro"). So a deeper network begins as the causal model, too.

    names of Llama, Qwen2 and Qwen3 (config.json, tokenizer.json), or of a storyteller (`corpus.storyteller`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.corpus.storyteller import FIRST_BYTE, START, Storyteller, storyteller_in, weights_in
from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.nn.decoder import CONDITION, Decoder, DecoderShape
from tsdfm.nn.layers import ScalarEmbedding, without_weights
from tsdfm.nn.network import condition_of
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec, assembled
from tsdfm.public.decoders import (
    FAMILIES,
    check_plain,
    end_of_text,
    head_is_tied,
    is_id,
    shape_of,
    theirs_of,
    unused_in,
)
from tsdfm.public.layouts import EMBEDDING, HEAD
from tsdfm.public.model import fetch
from tsdfm.public.tensors import PublicTensors, licence_beside, open_tensors, read_config
from tsdfm.store.files import file_sha256, read_json
from tsdfm.tokens.bpe import byte_symbols
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.tokenizer import FILE

NAMES = FAMILIES["dream"]  # Qwen2's names, which are Llama's and Qwen3's too
RAW_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte, in tokenizers that write a space as ▁


@dataclass(frozen=True)
class Causal:
    """A causal model: its sizes, its tensors under our names, its tokens by their bytes, and where it is from."""

    shape: DecoderShape
    weights: dict[str, Tensor]
    ids: Mapping[bytes, int]
    start: int
    origin: dict[str, Any]

    def rows_for(self, pieces: Sequence[bytes]) -> tuple[Tensor, Tensor]:
        """Rows [V, D] of the embedding and of the head for tokens of these bytes; one without any is end-of-text."""
        spelled = [self.spell(piece) for piece in pieces]
        longer = [ids for piece, ids in zip(pieces, spelled, strict=True) if len(piece) > 1]  # than a fallback's byte
        if 2 * (lost := longer.count([self.start])) > len(longer):
            raise UserError(f"{lost} of {len(longer)} tokens cannot be spelled in the model's: fetch its own tokenizer")
        embedding = torch.stack([self.weights[EMBEDDING][ids].mean(0) for ids in spelled])
        return embedding, self.weights[HEAD][[ids[0] for ids in spelled]]

    def grown(self, times: int) -> Causal:
        """The same model with so many blocks for each of its own, of which the new ones add nothing."""
        count = times * sum(tensor.numel() for tensor in self.weights.values())
        check_memory(4 * count, f"a start of {count:,} weights", "lower grow")
        weights = {name: tensor for name, tensor in self.weights.items() if not name.startswith("blocks.")}
        for name in sorted(self.weights.keys() - weights.keys()):
            _, i, part = name.split(".", 2)
            own, writes = self.weights[name], part in ("out.weight", "down.weight")
            for more in range(times):
                copy = torch.zeros_like(own) if writes else own.clone()
                weights[f"blocks.{times * int(i) + more}.{part}"] = copy if more else own
        return replace(self, shape=deeper(self.shape, times), weights=weights)

    def spell(self, piece: bytes) -> list[int]:
        """The model's tokens of some bytes, always the longest that fits; bytes it has no token for are left out."""
        found, at = list[int](), 0
        while at < len(piece):
            for end in range(len(piece), at, -1):  # where none fits, it ends after the first byte
                if (token := self.ids.get(piece[at:end])) is not None:
                    found.append(token)
                    break
            at = end
        return found or [self.start]


def is_causal(source: Path) -> bool:
    """Is it a storyteller, or a folder whose config names a causal model of Llama's or Qwen's make?"""
    if weights_in(source) is not None:
        return True
    if not (source / "config.json").is_file():
        return False
    named = read_config(source).get("architectures")
    known = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    return isinstance(named, list) and any(word in known for word in named)


def causal_folder(source: str, revision: str = "") -> Path:
    """The folder of a causal model: on this machine, or from the hub."""
    path = Path(source)
    if path.is_file():
        raise UserError(f"{path} is a file: of a causal model, give the folder with its config and tokenizer")
    if path.exists() and revision:
        raise UserError(f"{path} is on this machine: a revision is for a name of the hub, leave it out")
    path = path if path.exists() else fetch(source, revision)
    if not is_causal(path):
        raise UserError(f"{source} is no causal model of Llama's or Qwen's make, nor a storyteller")
    return path


def files_of(source: Path) -> dict[str, str]:
    """The hash of each file of a causal model's weights by its name, as an `origin` has them."""
    told = weights_in(source)
    return open_tensors(source).sha256() if told is None else {told.name: file_sha256(told)}


def start_for(
    source: Path, tokens: Path, noise: str, grow: int = 1
) -> tuple[VelocitySpec, dict[str, Tensor], dict[str, Any]]:
    """The network of a flow model on the rows of `tokens` from noise `uniform` or `mask`, its weights, its origin.

    It has `grow` blocks for each of the causal model's.
    """
    rows, causal = TokenRows(tokens, "train"), read_causal(source).grown(grow)
    about = {"anchor": rows.anchor, "tokenizer": rows.fingerprint}
    spec = start_spec(causal.shape, vocab=rows.vocab_size, source=noise, length=rows.length, **about)
    embedding, head = causal.rows_for(rows.tokenizer.pieces)
    more = spec.flow_source().tokens - rows.vocab_size  # a row for [MASK], where there is one
    embedding = torch.cat([embedding, embedding.mean(0, keepdim=True).expand(more, -1)])
    weights = {**causal.weights, EMBEDDING: embedding, HEAD: head, **new_condition(spec)}
    origin = {**causal.origin, "licence": licence_beside(source)}
    return spec, assembled(spec, weights.items(), "cpu").state_dict(), origin


def new_condition(spec: VelocitySpec) -> dict[str, Tensor]:
    """The weights of a fresh condition, as `spec.network()` draws them: an embedding of t, and maps that are zero."""
    with without_weights():
        wanted = spec.network().state_dict()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        torch.nn.Embedding(*wanted[EMBEDDING].shape)  # which a network draws first
        time = ScalarEmbedding(spec.shape.cond).state_dict()
    zero = {name: torch.zeros(wanted[name].shape) for name in condition_of(wanted)}
    return zero | {f"time.{name}": tensor for name, tensor in time.items()}


def start_spec(sizes: DecoderShape, **rows: Any) -> VelocitySpec:
    """The network that a causal model of some sizes becomes, for `rows` of a vocab, source, length, …"""
    parts = {name: getattr(sizes, name) for name in ("width", "depth", "heads", "cond", "hidden")}
    shape = Shape(**parts, dropout=0.0, checkpoint=False)
    return VelocitySpec(shape=shape, schedule="poly:1", shift=True, decoder=sizes, **rows)


def deeper(shape: DecoderShape, times: int) -> DecoderShape:
    """A decoder's sizes with so many blocks for each of its own."""
    return replace(shape, depth=times * shape.depth)


def sizes_in(source: Path, grow: int = 1) -> DecoderShape:
    """The sizes of a start from the causal model in a folder, with the condition that it gets."""
    if weights_in(source) is not None:
        return deeper(from_storyteller(storyteller_in(source)).shape, grow)
    return deeper(replace(shape_of(NAMES, open_tensors(source).shapes, read_config(source)), cond=CONDITION), grow)


def read_causal(source: Path) -> Causal:
    """The causal model in a folder."""
    if weights_in(source) is not None:
        return from_storyteller(storyteller_in(source))
    return from_llama(open_tensors(source), read_config(source), source)


def from_storyteller(teller: Storyteller) -> Causal:
    """A storyteller; its rotary positions turn adjacent pairs of numbers, ours the two halves of a head."""
    w, sizes = teller.weights, teller.sizes
    width, heads = sizes["dim"], sizes["heads"]
    halves = torch.arange(width).view(heads, -1, 2).transpose(1, 2).flatten()
    shape = DecoderShape(
        width=width, depth=sizes["layers"], heads=heads, kv_heads=heads, head=width // heads, hidden=w["w1"].shape[1],
        eps=1e-5, cond=CONDITION,
    )  # fmt: skip
    weights = {EMBEDDING: w["embedding"], HEAD: w["embedding"], "norm.weight": w["final_norm"]}
    names = {"out": "wo", "v": "wv", "gate": "w1", "up": "w3", "down": "w2"}
    names |= {"norm_1": "attention_norm", "norm_2": "ffn_norm"}
    for i in range(shape.depth):
        weights |= {f"blocks.{i}.{ours}.weight": w[theirs][i] for ours, theirs in names.items()}
        weights |= {f"blocks.{i}.{ours}.weight": w[f"w{ours}"][i][halves] for ours in ("q", "k")}
    origin = {"source": "storyteller", "layout": "causal", "files": {teller.file: teller.sha256}}
    raw = {bytes([byte]): FIRST_BYTE + byte for byte in range(256)}  # their pieces are words, such as <0x0A>
    return Causal(shape, weights, raw | teller.vocabulary.ids, START, origin)


def from_llama(tensors: PublicTensors, config: Mapping[str, Any], folder: Path) -> Causal:
    """A model with the names of Llama, Qwen2 or Qwen3."""
    check_plain(config)
    plain = shape_of(NAMES, tensors.shapes, config)
    tied = head_is_tied(NAMES, tensors.shapes, config)
    rows = tensors.shapes[f"{NAMES.embedding}.weight"][0]
    with without_weights():
        net = Decoder(plain, vocab=rows, tokens=rows)
    wanted = {theirs_of(ours, NAMES, tied): tuple(tensor.shape) for ours, tensor in net.state_dict().items()}
    unused = unused_in(NAMES, tensors.shapes, tied)
    found = {name: shape for name, shape in tensors.shapes.items() if name not in unused}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        had, want = found.get(wrong[0], "not there"), wanted.get(wrong[0], "not there")
        raise UserError(
            f"{folder} is no causal model of Llama's or Qwen's make: {wrong[0]} is {had} and should be {want}"
        )
    count = sum(tensor.numel() for tensor in net.state_dict().values())
    check_memory(4 * count, f"a start of {count:,} weights", "take a smaller causal model")
    ids = bytes_of(folder, rows)
    start = end_of_text(config, rows, "eos_token_id" if config.get("bos_token_id") is None else "bos_token_id")
    weights = {ours: tensors.get(theirs_of(ours, NAMES, tied), dtype=torch.float32) for ours in net.state_dict()}
    origin = {"source": folder.name, "layout": "causal", "files": tensors.sha256()}
    return Causal(replace(plain, cond=CONDITION), weights, ids, start, origin)


def tokens_in(folder: Path, rows: int) -> dict[str, int]:
    """The tokens of a tokenizer.json as they are written there, each with one of so many rows."""
    if not (folder / FILE).is_file():
        raise UserError(f"no {FILE} in {folder}: fetch the model's tokenizer too")
    model = read_json(folder / FILE).get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        raise UserError(f"{folder / FILE} has no table of tokens: it is of no byte-pair tokenizer")
    for token, i in vocab.items():
        if not is_id(i, rows):
            told = f"{token!r:.40} as number {i!r:.40}, beyond the {rows} rows of the embedding"
            raise UserError(f"the tokenizer in {folder} has {told}: fetch it again")
    return vocab


def bytes_of(folder: Path, rows: int) -> dict[bytes, int]:
    """The tokens of a tokenizer.json by their bytes: in byte symbols (Ġ for a space), or with ▁ for a space.

    It is the one of the two that begins more tokens.
    """
    vocab, symbols = tokens_in(folder, rows), byte_symbols()
    spaced = sum(token.startswith("▁") for token in vocab) > sum(token.startswith("Ġ") for token in vocab)
    found = dict[bytes, int]()
    for token, i in vocab.items():
        raw = RAW_BYTE.fullmatch(token) if spaced else None
        if raw:
            found.setdefault(bytes([int(raw[1], 16)]), i)
        elif spaced:
            found[token.replace("▁", " ").encode(errors="surrogatepass")] = i
        elif symbols.keys() >= {*token}:
            found[bytes(symbols[c] for c in token)] = i
    if not found:
        raise UserError(f"{folder / FILE} has no token of known bytes: fetch the tokenizer of this model")
    return found
