"""A causal language model as the start of a flow model.

A causal model of the Llama family, without its mask, is our decoder; a condition that starts at zero tells it the time.
Training makes a flow model of it far sooner than of fresh weights (docs/log.md). A causal model speaks at position i of
the token i + 1, so the network is one whose answers are shifted by one.

The flow model has the vocabulary of a tokens folder. A token that the causal model has too takes its rows. Any other is
spelled in the causal model's tokens, the longest first: its embedding is their mean, and its row of the head is that of
the first one, which is what a causal model would say next. End-of-text is the token that starts the model's texts, and
[MASK] the mean of all.

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

from tsdfm.corpus.storyteller import START, Storyteller, storyteller_in, weights_in
from tsdfm.errors import UserError
from tsdfm.nn.decoder import CONDITION, Decoder, DecoderShape
from tsdfm.nn.layers import without_weights
from tsdfm.nn.network import fill
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.public.decoders import FAMILIES, check_plain, end_of_text, shape_of, theirs_of
from tsdfm.public.layouts import EMBEDDING, HEAD
from tsdfm.public.model import fetch
from tsdfm.public.tensors import PublicTensors, open_tensors, read_config
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
        embedding = torch.stack([self.weights[EMBEDDING][ids].mean(0) for ids in spelled])
        return embedding, self.weights[HEAD][[ids[0] for ids in spelled]]

    def spell(self, piece: bytes) -> list[int]:
        """The model's tokens of some bytes, always the longest that fits; bytes it has no token for are left out."""
        found, at = list[int](), 0
        while at < len(piece):
            end = next((end for end in range(len(piece), at, -1) if piece[at:end] in self.ids), at + 1)
            found += [self.ids[piece[at:end]]] if piece[at:end] in self.ids else []
            at = end
        return found or [self.start]


def is_causal(source: Path) -> bool:
    """Is it a storyteller, or a folder whose config names a causal model of Llama's or Qwen's make?"""
    if weights_in(source) is not None:
        return True
    if not (source / "config.json").is_file():
        return False
    named = read_config(source).get("architectures")
    known = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
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


def start_for(source: Path, tokens: Path, noise: str) -> tuple[VelocitySpec, dict[str, Tensor], dict[str, Any]]:
    """The network of a flow model on the rows of `tokens` from noise `uniform` or `mask`, its weights, its origin."""
    rows, causal = TokenRows(tokens, "train"), read_causal(source)
    about = {"anchor": rows.anchor, "tokenizer": rows.fingerprint}
    spec = start_spec(causal.shape, vocab=rows.vocab_size, source=noise, length=rows.length, **about)
    embedding, head = causal.rows_for(rows.tokenizer.pieces)
    more = spec.flow_source().tokens - rows.vocab_size  # a row for [MASK], where there is one
    embedding = torch.cat([embedding, embedding.mean(0, keepdim=True).expand(more, -1)])
    torch.manual_seed(0)  # of the new weights, which do nothing at first
    net = spec.network()
    fill(net, {**causal.weights, EMBEDDING: embedding, HEAD: head})
    return spec, net.state_dict(), causal.origin


def start_spec(sizes: DecoderShape, **rows: Any) -> VelocitySpec:
    """The network that a causal model of some sizes becomes, for `rows` of a vocab, source, length, …"""
    parts = {name: getattr(sizes, name) for name in ("width", "depth", "heads", "cond", "hidden")}
    shape = Shape(**parts, dropout=0.0, checkpoint=False)
    return VelocitySpec(shape=shape, schedule="poly:1", shift=True, decoder=sizes, **rows)


def sizes_in(source: Path) -> DecoderShape:
    """The sizes of the causal model in a folder, with the condition that it gets."""
    if weights_in(source) is not None:
        return from_storyteller(storyteller_in(source)).shape
    return replace(shape_of(NAMES, open_tensors(source).shapes, read_config(source)), cond=CONDITION)


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
    return Causal(shape, weights, teller.vocabulary.ids, START, origin)


def from_llama(tensors: PublicTensors, config: Mapping[str, Any], folder: Path) -> Causal:
    """A model with the names of Llama, Qwen2 or Qwen3."""
    check_plain(config)
    plain = shape_of(NAMES, tensors.shapes, config)
    tied = f"{NAMES.head}.weight" not in tensors.shapes
    rows = tensors.shapes[f"{NAMES.embedding}.weight"][0]
    with without_weights():
        net = Decoder(plain, vocab=rows, tokens=rows)
    wanted = {theirs_of(ours, NAMES, tied): tuple(tensor.shape) for ours, tensor in net.state_dict().items()}
    found = {name: shape for name, shape in tensors.shapes.items() if not name.endswith("rotary_emb.inv_freq")}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        had, want = found.get(wrong[0], "not there"), wanted.get(wrong[0], "not there")
        raise UserError(
            f"{folder} is no causal model of Llama's or Qwen's make: {wrong[0]} is {had} and should be {want}"
        )
    ids = bytes_of(folder)
    if max(ids.values(), default=0) >= rows:
        raise UserError(f"the tokenizer in {folder} has tokens beyond the {rows} rows of the embedding: fetch it again")
    begin = config.get("bos_token_id")
    start = end_of_text({"eos_token_id": begin} if begin is not None else config, rows)
    weights = {ours: tensors.get(theirs_of(ours, NAMES, tied), dtype=torch.float32) for ours in net.state_dict()}
    said = config.get("license")
    origin = {"source": folder.name, "layout": "causal", "files": tensors.sha256()}
    origin |= {"licence": said} if isinstance(said, str) else {}
    return Causal(replace(plain, cond=CONDITION), weights, ids, start, origin)


def bytes_of(folder: Path) -> dict[bytes, int]:
    """The tokens of a tokenizer.json by their bytes: written in byte symbols, or with ▁ for a space."""
    if not (folder / FILE).is_file():
        raise UserError(f"no {FILE} in {folder}: fetch the model's tokenizer too")
    file, symbols = read_json(folder / FILE), byte_symbols()
    vocab = file.get("model", {}).get("vocab") if isinstance(file.get("model"), dict) else None
    if not isinstance(vocab, dict) or not all(isinstance(i, int) for i in vocab.values()):
        raise UserError(f"{folder / FILE} has no table of tokens: it is of no byte-pair tokenizer")
    spaced = "▁" in vocab and "Ġ" not in vocab
    found = dict[bytes, int]()
    for token, i in vocab.items():
        raw = RAW_BYTE.fullmatch(token) if spaced else None
        if raw:
            found.setdefault(bytes([int(raw[1], 16)]), i)
        elif spaced:
            found[token.replace("▁", " ").encode()] = i
        elif symbols.keys() >= {*token}:
            found[bytes(symbols[c] for c in token)] = i
    return found
