"""The layouts of public DDiT checkpoints: which tensor is which, and what the network behind them is.

MDLM, SEDD, SDTT, Duo, IDLM and (FS-)DFM share one network under two sets of names. A layout is recognised by the names
and shapes of its tensors and by the config beside them, never by the name of a file. Shapes decide sizes, and what a
config says of them must agree. The reverse of a layout writes what it read, bit for bit: what has no place in our
network, the head's row of [MASK] and the rotary buffer, is kept beside the weights (`left_over`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.methods import method
from tsdfm.nn.settings import Shape
from tsdfm.settings import nearest

WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module|backbone)\.)+")
HELPERS = ("teacher.",)  # a frozen copy that some trainers store beside the student
ROTARY = "rotary_emb.inv_freq"
BLOCK = re.compile(r"blocks\.(\d+)\.")
ROUNDED = 2**-8  # how far numbers may be off in files of 16 bits
LOG_LINEAR = "loglinear"
EMBEDDING, HEAD, HEAD_BIAS = "embedding.weight", "head.weight", "head.bias"
LINEAR = ("weight", "bias")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Names:
    """Ours → theirs, for one set of names; several of theirs are stacked along the rows."""

    embedding: str
    time: str
    qkv: tuple[str, ...]
    step: str = "dt_embedding"
    join: str = "time_condition_fuser"
    fuser: str = "condition_fuser"

    def table(self, depth: int, step_size: bool) -> dict[str, tuple[str, ...]]:
        """All tensors of a network of so many blocks."""
        found: dict[str, tuple[str, ...]] = {EMBEDDING: (self.embedding,)}

        def linear(ours: str, theirs: str) -> None:
            found.update({f"{ours}.{end}": (f"{theirs}.{end}",) for end in LINEAR})

        for layer in (0, 2):
            linear(f"time.mlp.{layer}", f"{self.time}.mlp.{layer}")
        for block in range(depth):
            place = f"blocks.{block}"
            found |= {f"{place}.norm_{n}.weight": (f"{place}.norm{n}.weight",) for n in (1, 2)}
            found[f"{place}.qkv.weight"] = tuple(f"{place}.{name}.weight" for name in self.qkv)
            found[f"{place}.out.weight"] = (f"{place}.attn_out.weight",)
            linear(f"{place}.adaln", f"{place}.adaLN_modulation")
            for layer in (0, 2):
                linear(f"{place}.mlp.{layer}", f"{place}.mlp.{layer}")
            if step_size:
                linear(f"{place}.fuser.0", f"{place}.{self.fuser}")
        found["norm.weight"] = ("output_layer.norm_final.weight",)
        linear("adaln", "output_layer.adaLN_modulation")
        linear("head", "output_layer.linear")
        if step_size:
            for layer in (0, 2):
                linear(f"step.mlp.{layer}", f"{self.step}.mlp.{layer}")
            linear("join", self.join)
            linear("fuser.0", f"output_layer.{self.fuser}")
        return found


DDIT = Names("vocab_embed.embedding", "sigma_map", ("attn_qkv",))
FSDFM = Names("vocab_embed.weight", "time_embedding", ("qw", "kw", "vw"))
SETS = {"ddit": DDIT, "fs-dfm": FSDFM}


@dataclass(frozen=True)
class Kind:
    """A family of public models: the method that its words are, whether [MASK] is its last row, and its names."""

    names: str
    words: Callable[[], dict[str, Any]]
    mask: bool | None  # none: as many rows as the tokenizer has, or one more


def _words(name: str, **changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**method(name).words(), **changed}


OWN = "tsdfm"
"""The layout of models that have no public relatives: our own names. What its config says under this name is a spec."""
DEFAULTS = "tsdfm_defaults"
"""How the model is best sampled, in a config of `tsdfm export`: some of n, steps, temperature, jump."""
KINDS = {
    "mdlm": Kind("ddit", _words("mdlm"), True),
    "sdtt": Kind("ddit", _words("mdlm", method="sdtt"), True),
    "sedd": Kind("ddit", _words("sedd"), None),
    "duo": Kind("ddit", _words("duo"), False),
    "dfm": Kind("fs-dfm", _words("dfm"), None),
    "fs-dfm": Kind("fs-dfm", _words("fs-dfm"), None),
}


MARKS = {
    "sedd": ("graph",),
    "sdtt": ("parameterization", "distillation"),
    "mdlm": ("time_conditioning",),
    "duo": ("causal",),
}
"""Words that the configs of a family have."""


@dataclass(frozen=True)
class Recognised:
    """A checkpoint whose layout is known.

    `table` is ours → theirs, by the names that stand in the file; `rows` those of the embedding, of which `vocab` are
    tokens; `extra` are tensors that are kept beside the weights, `unused` those that are left out, with the reason.
    """

    kind: str
    shape: Shape
    rows: int
    vocab: int
    table: dict[str, tuple[str, ...]]
    extra: tuple[str, ...]
    unused: dict[str, str]
    swap: int | None = None
    """The row of [MASK], where it is not the last: it changes places with that one."""

    @property
    def mask(self) -> bool:
        """Has the embedding a row for [MASK]?"""
        return self.rows > self.vocab


def recognise(shapes: Shapes, config: Mapping[str, Any], *, kind: str = "", heads: int = 0, tokens: int) -> Recognised:
    """The layout of a checkpoint with tensors of these shapes and this config, for a tokenizer of so many tokens.

    `kind` and `heads` say what the file leaves open; a file that leaves something open without them is asked about.
    """
    clean, unused = unwrapped(shapes)
    sizes = {name: shapes[full] for name, full in clean.items()}
    names = next((key for key, names in SETS.items() if names.embedding in sizes), None)
    if names is None or not any(name.startswith("blocks.") for name in sizes):
        some = ", ".join(sorted(sizes)[:3])
        raise UserError(f"no known layout has these tensors ({some}, …): docs/checkpoints.md lists the known ones")
    if "sigma_map_prime.mlp.0.weight" in sizes:
        raise UserError("this is a flow map with two times (FMLM): it works on continuous states, which tsdfm does not")
    kind = kind_of(names, sizes, config, kind)
    shape = shape_of(SETS[names], sizes, config, heads)
    table = SETS[names].table(shape.depth, bool(KINDS[kind].words()["step_size"]))
    rows, vocab = rows_of(kind, sizes, SETS[names].embedding, tokens)
    check_rows(config, rows, vocab)
    wanted = {theirs for group in table.values() for theirs in group}
    extra = {ROTARY} & sizes.keys()
    check(sizes, wanted, extra, SETS[names], shape, rows)
    full = {ours: tuple(clean[theirs] for theirs in group) for ours, group in table.items()}
    return Recognised(kind, shape, rows, vocab, full, tuple(clean[name] for name in sorted(extra)), unused)


def unwrapped(shapes: Shapes) -> tuple[dict[str, str], dict[str, str]]:
    """Names without what trainers wrap around them → names in the file; and what is left out, with the reason."""
    clean: dict[str, str] = {}
    unused: dict[str, str] = {}
    for full in shapes:
        name = WRAPPERS.sub("", full)
        if name.startswith(HELPERS):
            unused[full] = "a frozen teacher beside the model"
        elif name in clean:
            raise UserError(
                f"{full} and {clean[name]} are the same tensor of two models: take one model out of the file"
            )
        else:
            clean[name] = full
    return clean, unused


def kind_of(names: str, sizes: Shapes, config: Mapping[str, Any], asked: str) -> str:
    """Which family it is, by what the files say; where they leave it open, `asked` says it, and may not be wrong."""
    fitting = [name for name, one in KINDS.items() if one.names == names]
    if asked and asked not in fitting:
        raise UserError(f"these tensors are of {' or '.join(fitting)}, not of {asked!r}{nearest(asked, fitting)}")
    said = kinds_said(names, sizes, config)
    if asked and said and asked not in said:
        raise UserError(f"--kind says {asked}, and the files are of {' or '.join(said)}: leave it out")
    if not asked and not said and isinstance(config.get("model"), Mapping):
        return "sdtt"
    if found := asked or next(iter(said), ""):
        return found
    raise UserError("the tensors fit mdlm, sdtt, sedd and duo, and no config.json says which: name it with --kind")


def kinds_said(names: str, sizes: Shapes, config: Mapping[str, Any]) -> list[str]:
    """The families that the tensors or words of the config speak for, the surest first."""
    if names == "fs-dfm":
        return ["fs-dfm" if f"{FSDFM.step}.mlp.0.weight" in sizes else "dfm"]
    return [kind for kind, words in MARKS.items() if any(word in config for word in words)]


def shape_of(names: Names, sizes: Shapes, config: Mapping[str, Any], heads: int) -> Shape:
    """The network's sizes by its tensors; the config, where it has them, must agree."""

    def size(name: str, place: int) -> int:
        return (sizes.get(name) or (0,))[place]

    width = size(names.embedding, -1)
    blocks = {int(found[1]) for name in sizes if (found := BLOCK.match(name))}
    if blocks != set(range(len(blocks))):
        raise UserError(
            f"block {min(set(range(max(blocks))) - blocks)} of {max(blocks) + 1} is missing: fetch it again"
        )
    said = config_sizes(config)
    known = (width // (2 * max(1, size(ROTARY, 0))) if ROTARY in sizes else 0) or said.get("heads", 0)
    if heads and known and heads != known:
        raise UserError(f"--heads says {heads} and the file {known}: leave it out")
    heads = heads or known
    if heads < 1:
        raise UserError("the file does not say how many attention heads the network has: give --heads (32 for 1.3B)")
    if width % heads or (width // heads) % 2:
        raise UserError(f"a width of {width} does not split into {heads} heads of an even size")
    shape = Shape(
        width=width,
        depth=len(blocks),
        heads=heads,
        cond=size("blocks.0.adaLN_modulation.weight", -1),
        hidden=size("blocks.0.mlp.0.weight", 0),
        dropout=0.0,
        checkpoint=False,
    )
    for name, value in said.items():
        if getattr(shape, name) != value:
            raise UserError(
                f"config.json says {name} {value} and the tensors say {getattr(shape, name)}: they disagree"
            )
    return shape


CONFIG = {
    "width": ("hidden_dim", "hidden_size"),
    "depth": ("n_blocks",),
    "heads": ("n_heads",),
    "cond": ("cond_dim",),
}


def config_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes a config names, at its top or under `model`."""
    inner = config.get("model")
    both = {**(inner if isinstance(inner, Mapping) else {}), **config}
    found = {ours: next((both[key] for key in keys if key in both), None) for ours, keys in CONFIG.items()}
    return {ours: whole(value, CONFIG[ours][0]) for ours, value in found.items() if value is not None}


def whole(value: Any, word: str) -> int:
    """A number of a config that counts something."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"config.json says {word} {value!r}, which is no whole number: fetch it again")
    return value


def rows_of(kind: str, sizes: Shapes, embedding: str, tokens: int) -> tuple[int, int]:
    """Rows of the embedding, and how many of them are tokens: the last one is [MASK], or the tokenizer's padding."""
    rows, mask = (sizes[embedding] or (0,))[0], KINDS[kind].mask
    if rows not in (tokens, tokens + 1) or (mask and rows != tokens + 1):
        raise UserError(f"the embedding has {rows} rows, the tokenizer {tokens} tokens: this is not its tokenizer")
    masked = rows > tokens if mask is None else mask
    return rows, rows - 1 if masked else rows


def check_rows(config: Mapping[str, Any], rows: int, vocab: int) -> None:
    """Hold what a config says of the vocabulary, and of a token for noise, to the rows of the embedding."""
    graph = type_of(config, "graph")
    for name, there in {"vocab_size": rows, "tokens": vocab}.items():
        if config.get(name) is not None and (said := whole(config[name], name)) != there:
            raise UserError(f"config.json says {name} {said} and the tensors say {there}: they disagree")
    if graph in ("absorb", "uniform") and (graph == "absorb") != (rows > vocab):
        has = "a" if rows > vocab else "no"
        raise UserError(f"config.json says graph {graph}, and the embedding has {has} row for [MASK]: they disagree")


def type_of(config: Mapping[str, Any], part: str) -> str:
    """The type that a part of a config has, as in noise.type; empty where it is not said."""
    inner = config.get(part)
    return str(inner.get("type", "")) if isinstance(inner, Mapping) else str(inner or "")


def words_of(found: Recognised, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec says of a model that was recognised: its method's words, and what its config changes of them."""
    words, inner = KINDS[found.kind].words(), config.get("model")
    noise = type_of(config, "noise")
    if noise.replace("-", "") not in ("", LOG_LINEAR):
        raise UserError(f"config.json says that the network learned from {noise} noise: tsdfm reads log-linear alone")
    if not isinstance(told := config.get("time_conditioning") or False, bool):
        raise UserError(f"config.json says time_conditioning {told!r}, which is neither true nor false")
    if told and not words["time"]:
        words |= {"time": True, "clock": "sigma"}
    scaled = inner.get("scale_by_sigma", True) if isinstance(inner, Mapping) else True
    if words["logits"] == "scaled-score" and not (scaled and found.mask):
        words["logits"] = "score"
    return words


def check(sizes: Shapes, wanted: set[str], extra: set[str], names: Names, shape: Shape, rows: int) -> None:
    """Every tensor is known, none is missing, and all have the shapes of one network."""
    missing, more = sorted(wanted - sizes.keys()), sorted(sizes.keys() - wanted - extra)
    if missing or more:
        what = f"{missing[0]} is missing" if missing else f"{more[0]} has no place in it"
        raise UserError(f"the file does not fit its layout: {what}")
    for name in sorted(wanted | extra):
        want = expected(name, names, shape, rows)
        if sizes[name] != want:
            raise UserError(f"{name} has the shape {sizes[name]} where a network of these sizes has {want}")


def expected(name: str, names: Names, shape: Shape, rows: int) -> tuple[int, ...]:
    """The shape of one of their tensors in a network of these sizes."""
    d, c, f = shape.width, shape.cond, shape.hidden
    known: list[tuple[str, tuple[int, ...]]] = [
        (re.escape(names.embedding), (rows, d)),
        (rf"(?:{names.time}|{names.step})\.mlp\.0\.weight", (c, 256)),
        (rf"(?:{names.time}|{names.step})\.mlp\.2\.weight", (c, c)),
        (rf"(?:{names.time}|{names.step})\.mlp\.\d\.bias", (c,)),
        (rf"{names.join}\.weight", (2 * c, 2 * c)),
        (rf"{names.join}\.bias", (2 * c,)),
        (rf".*\.{names.fuser}\.weight", (c, 2 * c)),
        (rf".*\.{names.fuser}\.bias", (c,)),
        (r"blocks\.\d+\.norm[12]\.weight|output_layer\.norm_final\.weight", (d,)),
        (r"blocks\.\d+\.attn_qkv\.weight", (3 * d, d)),
        (r"blocks\.\d+\.(?:[qkv]w|attn_out)\.weight", (d, d)),
        (r"blocks\.\d+\.mlp\.0\.weight", (f, d)),
        (r"blocks\.\d+\.mlp\.0\.bias", (f,)),
        (r"blocks\.\d+\.mlp\.2\.weight", (d, f)),
        (r"blocks\.\d+\.mlp\.2\.bias", (d,)),
        (r"blocks\.\d+\.adaLN_modulation\.weight", (6 * d, c)),
        (r"blocks\.\d+\.adaLN_modulation\.bias", (6 * d,)),
        (r"output_layer\.adaLN_modulation\.weight", (2 * d, c)),
        (r"output_layer\.adaLN_modulation\.bias", (2 * d,)),
        (r"output_layer\.linear\.weight", (rows, d)),
        (r"output_layer\.linear\.bias", (rows,)),
        (re.escape(ROTARY), (d // shape.heads // 2,)),
    ]
    return next(shape for pattern, shape in known if re.fullmatch(pattern, name))


def ours_from(found: Recognised, get: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors one by one, of theirs; a modulation or head that is all zero is refused, and another rotation."""
    for name in found.extra:
        rates = get(name).double().cpu()
        if not torch.allclose(rates, rotary_rates(found.shape).double(), rtol=ROUNDED, atol=0.0):
            raise UserError(f"{name} holds other rates than 10000^(-2j/{2 * len(rates)}), with which tsdfm rotates")
    for ours, theirs in found.table.items():
        parts = [get(name) for name in theirs]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        if found.swap is not None and ours in (EMBEDDING, HEAD):
            tensor = swapped(tensor, found.swap)
        if ours in (HEAD, HEAD_BIAS):
            tensor = tensor[: found.vocab].contiguous()
        if (ours == HEAD or ours.endswith("adaln.weight")) and not bool(tensor.any()):
            raise UserError(f"{theirs[0]} is all zero: the file holds a network that was never trained")
        yield ours, tensor


def rotary_rates(shape: Shape) -> Tensor:
    """The buffer that public networks keep beside their weights: 10000^(−2j/E) [E/2], E the head size."""
    head = shape.width // shape.heads
    return 1.0 / 10_000.0 ** (torch.arange(0, head, 2, dtype=torch.float32) / head)


def swapped(tensor: Tensor, row: int) -> Tensor:
    """A copy of tensor [R, …] in which one row and the last one have changed places."""
    made = tensor.clone()
    made[row], made[-1] = tensor[-1], tensor[row]
    return made


def left_over(found: Recognised, get: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """What has no place in our network and is kept to write the file again: by their names."""
    kept = {name: get(name) for name in found.extra}
    if found.mask:
        for ours in (HEAD, HEAD_BIAS):
            (theirs,) = found.table[ours]
            kept[theirs] = get(theirs)[found.vocab :].contiguous()
    return kept


def theirs_from(
    table: Mapping[str, tuple[str, ...]], weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Their tensors of ours, and of what was left over: the reverse of `ours_from`."""
    found: dict[str, Tensor] = {}
    for ours, theirs in table.items():
        tensor = weights[ours]
        if ours in (HEAD, HEAD_BIAS) and theirs[0] in rest:
            tensor = torch.cat([tensor, rest[theirs[0]].to(tensor.dtype)])
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            found[name] = part.contiguous()
    return found | {name: tensor for name, tensor in rest.items() if name not in found}
