"""The layouts of large public models that are decoders without a causal mask: LLaDA, Dream and SDAR.

    llada    model.transformer.*      same-position answers                        LLaDA's names
    dream    model.layers.*, biases   answers shifted by one                       Qwen2's names
    sdar     model.layers.*, q_norm   blocks that see themselves and those before  Qwen3's names; T3D's models

A causal Qwen has the tensors of one of them, so the config must say that there is a mask token. Sizes come from the
tensors, and what only a config knows (heads, rotary base, ε) must stand in it. [MASK] is the last token of our networks
and stands in the middle of theirs: its row changes places with the last one, in the embedding, in the head and in the
tokenizer, which changes no answer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tsdfm.errors import UserError
from tsdfm.methods import method
from tsdfm.nn.decoder import Decoder, DecoderShape
from tsdfm.nn.layers import without_weights
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.public.layouts import EMBEDDING, HEAD, Recognised, Shapes
from tsdfm.settings import nearest
from tsdfm.tokens.engine import EngineTokenizer, engine_file
from tsdfm.tokens.tokenizer import Tokenizer

LENGTH = 1024  # tokens of a row, unless told otherwise: these models take longer ones, and need not
PLAIN = {
    "rope_scaling": None,
    "rope_type": "default",
    "use_sliding_window": False,
    "use_mrope": False,
    "hidden_act": "silu",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "alibi": False,
    "scale_logits": False,
    "input_emb_norm": False,
}
"""Words of a config that change what a network computes, and what they must say where they stand in it."""
QWEN = {
    **{name: f"self_attn.{name}_proj" for name in ("q", "k", "v")},
    "out": "self_attn.o_proj",
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
LLADA = {
    **{name: f"{name}_proj" for name in ("q", "k", "v", "up")},
    "out": "attn_out",
    "gate": "ff_proj",
    "down": "ff_out",
    "norm_1": "attn_norm",
    "norm_2": "ff_norm",
}


@dataclass(frozen=True)
class Family:
    """A set of names: of the embedding, the blocks, their parts, the last norm and the head; and what its models are.

    `sizes` are the config's words for heads, heads of keys, head size, width, depth and hidden width; `mask` is the id
    that the public models have, where the config does not say it; `word` stands in the config's architecture.
    """

    embedding: str
    blocks: str
    parts: Mapping[str, str]
    norm: str
    head: str
    sizes: Mapping[str, tuple[str, ...]]
    word: str
    method: str
    mask: int
    block: int = 0


QWEN_SIZES = {
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head": ("head_dim",),
    "width": ("hidden_size",),
    "depth": ("num_hidden_layers",),
    "hidden": ("intermediate_size",),
}
LLADA_SIZES = {
    "heads": ("n_heads",),
    "kv_heads": ("n_kv_heads", "n_heads"),
    "width": ("d_model",),
    "depth": ("n_layers",),
    "hidden": ("mlp_hidden_size",),
}
PLACES = ("model.embed_tokens", "model.layers", QWEN, "model.norm", "lm_head", QWEN_SIZES)
FAMILIES = {
    "llada": Family(
        "model.transformer.wte", "model.transformer.blocks", LLADA, "model.transformer.ln_f",
        "model.transformer.ff_out", LLADA_SIZES, "llada", "llada", 126336,
    ),
    "dream": Family(*PLACES, "dream", "dream", 151666),
    "sdar": Family(*PLACES, "sdar", "llada", 151669, block=4),
}  # fmt: skip


def is_decoder(shapes: Shapes) -> bool:
    """Are these the tensors of such a network?"""
    return any(f"{family.embedding}.weight" in shapes for family in FAMILIES.values())


def read_decoder(
    shapes: Shapes,
    config: Mapping[str, Any],
    folder: Path,
    *,
    length: int = 0,
    schedule: str,
    **words: Any,
) -> tuple[Recognised, VelocitySpec, Tokenizer]:
    """The layout of a decoder, what the network is, and its tokenizer, of which `folder` holds the file.

    `words` are those of `recognise_decoder`.
    """
    found, shape = recognise_decoder(shapes, config, **words)
    assert found.swap is not None
    end = end_of_text(config, found.rows)
    try:
        tokenizer = EngineTokenizer(
            engine_file(folder), size=found.vocab, mask=found.swap, end_of_text=end, name=found.kind
        )
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as problem:  # in whichever of its files
        raise UserError(f"the tokenizer in {folder} is not of this model ({problem}): fetch it again") from None
    spec = VelocitySpec(
        shape=found.shape,
        vocab=found.vocab,
        source="mask",
        schedule=schedule,
        length=length_of(config, length),
        anchor=0,
        tokenizer=tokenizer.fingerprint,
        decoder=shape,
        **words_of(found.kind, shape),
    )
    return found, spec, tokenizer


def recognise_decoder(
    shapes: Shapes, config: Mapping[str, Any], *, kind: str = "", mask: int | None = None, block: int = 0
) -> tuple[Recognised, DecoderShape]:
    """The layout of a decoder with tensors of these shapes and this config.

    `mask` is the mask token's id, `block` the tokens of a block, where the config does not say them.
    """
    kind = kind_of(shapes, config, kind)
    check_plain(config)
    family = FAMILIES[kind]
    if block and not family.block:
        raise UserError(f"a {kind} does not write in blocks of its own: leave out --block, and sample by llada:{block}")
    shape = shape_of(family, shapes, {**config, "block_size": block} if block else config)
    rows = shapes[f"{family.embedding}.weight"][0]
    said = config.get("embedding_size") or config.get("vocab_size") or rows
    if said != rows:
        raise UserError(f"config.json says {said} tokens and the embedding has {rows} rows: they disagree")
    tied = head_is_tied(family, shapes, config)
    with without_weights():
        wanted = {n: tuple(t.shape) for n, t in Decoder(shape, vocab=rows, tokens=rows).state_dict().items()}
    table: dict[str, tuple[str, ...]] = {ours: (theirs_of(ours, family, tied),) for ours in wanted}
    unused = unused_in(family, shapes, tied)
    more = sorted(shapes.keys() - {theirs for (theirs,) in table.values()} - unused.keys())
    if more:
        raise UserError(f"the file does not fit the layout of {kind}: {more[0]} has no place in it")
    for ours, (theirs,) in table.items():
        if theirs not in shapes:
            raise UserError(f"the file does not fit the layout of {kind}: {theirs} is missing")
        if shapes[theirs] != wanted[ours]:
            raise UserError(f"{theirs} has the shape {shapes[theirs]} where a {kind} of these sizes has {wanted[ours]}")
    common = Shape(
        width=shape.width, depth=shape.depth, heads=shape.heads, cond=1, hidden=shape.hidden, dropout=0.0,
        checkpoint=False,
    )  # fmt: skip
    swap = mask_of(family, config, rows, mask)
    return Recognised(kind, common, rows, rows - 1, table, (), unused, swap), shape


def kind_of(shapes: Shapes, config: Mapping[str, Any], kind: str) -> str:
    """Which family it is: by its tensors, if the config, or who asks, says that it is no causal model."""
    normed, biased = (any(name.endswith(end) for name in shapes) for end in ("self_attn.q_norm.weight", "q_proj.bias"))
    qwen = "sdar" if normed and not biased else "dream" if biased and not normed else ""
    found = "llada" if f"{FAMILIES['llada'].embedding}.weight" in shapes else qwen
    if kind and kind != found:
        fits = f"these tensors are of {found}" if found else "these tensors are of none of llada, dream and sdar"
        raise UserError(f"{fits}, not of {kind!r}{nearest(kind, FAMILIES)}")
    if not found:
        raise UserError("these tensors are of none of llada, dream and sdar: docs/checkpoints.md lists the known ones")
    named = f"{config.get('model_type', '')} {config.get('architectures', '')}".lower()
    if not kind and FAMILIES[found].word not in named and "mask_token_id" not in config:
        raise UserError(
            f"the tensors fit {found}, and a causal model of the same make: config.json names no mask token; if it is "
            f"one, say --kind {found}"
        )
    return found


def head_is_tied(family: Family, shapes: Shapes, config: Mapping[str, Any]) -> bool:
    """Is the head the embedding? The config says it; where it does not, the head must be there."""
    tied = bool(config.get("tie_word_embeddings", config.get("weight_tying", False)))
    if not tied and f"{family.head}.weight" not in shapes:
        raise UserError(
            f"{family.head}.weight is missing, and config.json does not say that it is the embedding: fetch it again"
        )
    return tied


def unused_in(family: Family, shapes: Shapes, tied: bool) -> dict[str, str]:
    """Tensors of a file that nobody reads, and why: as transformers has it, a head that is tied is not looked at."""
    unused = {name: "rates of the rotation" for name in shapes if name.endswith("rotary_emb.inv_freq")}
    return unused | {name: "the embedding is the head" for name in shapes if tied and name == f"{family.head}.weight"}


def check_plain(config: Mapping[str, Any]) -> None:
    """Refuse a config that asks for what this network does not compute."""
    rope = config.get("rope_parameters")
    inner = rope.get("rope_type") if isinstance(rope, Mapping) else None
    for word, value in {**config, "rope_type": inner}.items():
        if word in PLAIN and value is not None and value != PLAIN[word]:
            raise UserError(f"config.json says {word} {value!r}, which this network does not compute: it has no reader")


def shape_of(family: Family, shapes: Shapes, config: Mapping[str, Any]) -> DecoderShape:
    """The sizes by the tensors, and by the config what these leave open; both must agree."""
    if (embedding := f"{family.embedding}.weight") not in shapes:
        raise UserError(f"{embedding} is missing: give the file of the whole model, under its public names")
    first = f"{family.blocks}.0."
    number_of = re.compile(rf"{re.escape(family.blocks)}\.(\d+)\.")
    blocks = [int(found[1]) for name in shapes if (found := number_of.match(name))]
    rows = {part: shapes.get(f"{first}{family.parts[part]}.weight") or (0,) for part in ("q", "k", "gate")}
    said = {ours: next((config[key] for key in keys if config.get(key)), 0) for ours, keys in family.sizes.items()}
    heads = whole(said["heads"], family.sizes["heads"][0])
    head = said.get("head") or rows["q"][0] // heads
    shape = DecoderShape(
        width=(shapes[embedding] or (0,))[-1],
        depth=1 + max(blocks, default=0),
        heads=heads,
        kv_heads=rows["k"][0] // whole(head, "head_dim"),
        head=head,
        hidden=rows["gate"][0],
        theta=number(config, "rope_theta"),
        eps=number(config, "rms_norm_eps"),
        biases=f"{first}{family.parts['q']}.bias" in shapes,
        head_norms=f"{first}{family.parts.get('q_norm', '-')}.weight" in shapes,
        block=whole(config.get("block_size", family.block), "block_size") if family.block else 0,
    )
    for name, value in said.items():
        if value and getattr(shape, name) != value:
            raise UserError(
                f"config.json says {name} {value} and the tensors say {getattr(shape, name)}: they disagree"
            )
    return shape


def whole(value: Any, word: str) -> int:
    """A number of the config that must be there."""
    if not isinstance(value, int) or value < 1:
        raise UserError(f"config.json does not say {word}, which the tensors leave open: fetch it too")
    return value


def number(config: Mapping[str, Any], word: str) -> float:
    """A number of the config that no tensor tells: at its top, or where newer configs have the rotary ones."""
    inner = config.get("rope_parameters")
    value = config.get(word, inner.get(word) if isinstance(inner, Mapping) else None)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"config.json does not say {word}, which the tensors leave open: fetch it too")
    if not abs(value) <= sys.float_info.max:
        raise UserError(f"config.json says {word} is a number that no machine computes with: fetch it again")
    return float(value)


def mask_of(family: Family, config: Mapping[str, Any], rows: int, given: int | None) -> int:
    """The mask token's row: as given, as the config says, or as the public models have it."""
    found = config.get("mask_token_id", family.mask) if given is None else given
    if not is_id(found, rows):
        raise UserError(f"the mask token {found} is none of the {rows} rows of the embedding: give --mask")
    return found


def theirs_of(ours: str, family: Family, tied: bool) -> str:
    """The name in the file of one of our tensors."""
    if ours == EMBEDDING or (ours == HEAD and tied):
        return f"{family.embedding}.weight"
    if ours == HEAD:
        return f"{family.head}.weight"
    if ours == "norm.weight":
        return f"{family.norm}.weight"
    _, block, part, end = ours.split(".")
    return f"{family.blocks}.{block}.{family.parts[part]}.{end}"


def words_of(kind: str, shape: DecoderShape) -> dict[str, Any]:
    """What a `VelocitySpec` says of such a model: its method's words; blocks are written from left to right."""
    family = FAMILIES[kind]
    words = method(family.method).words()
    return {**words, "jump": f"llada:{shape.block}"} if shape.block else words


def is_id(value: object, rows: int) -> TypeGuard[int]:
    """Is it the number of one of so many rows? True and False are none."""
    return type(value) is int and 0 <= value < rows


def end_of_text(config: Mapping[str, Any], rows: int, word: str = "eos_token_id") -> int:
    """The id of end-of-text, one of so many, by the config's `word`; the first of several."""
    found = config.get(word)
    found = found[0] if isinstance(found, list) and found else found
    if found is None:
        raise UserError(f"config.json does not say {word}, with which texts end: fetch it too")
    if not is_id(found, rows):
        raise UserError(f"config.json says {word} {found!r}, and the embedding has {rows} rows: they disagree")
    return found


def length_of(config: Mapping[str, Any], given: int) -> int:
    """Tokens of a row: as given, or a thousand where the model takes them."""
    most = [config.get(key) for key in ("max_sequence_length", "max_position_embeddings")]
    most_here = min((value for value in most if isinstance(value, int) and value > 0), default=LENGTH)
    if given > most_here:
        raise UserError(f"config.json says rows of at most {most_here} tokens, not {given}: lower --length")
    return given or min(LENGTH, most_here)
