"""A public checkpoint as one of our models: `read_public` finds it, recognises it and makes its tensors ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.nn.layers import without_weights
from tsdfm.nn.velocity import Velocity, VelocitySpec, assembled
from tsdfm.public.decoders import is_decoder, read_decoder
from tsdfm.public.layouts import (
    DEFAULTS,
    EMBEDDING,
    OWN,
    Recognised,
    Shapes,
    left_over,
    ours_from,
    recognise,
    whole,
    words_of,
)
from tsdfm.public.tensors import TORCH, PublicTensors, licence_beside, open_tensors, read_config
from tsdfm.settings import build
from tsdfm.store.bundle import ROLES, find_shipped
from tsdfm.store.checkpoint import has_checkpoint
from tsdfm.store.hub import out_of_reach
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.tokens.bpe import GPT2_FINGERPRINT, GPT2_TOKENS, PairTokenizer, gpt2
from tsdfm.tokens.tokenizer import Tokenizer, is_ours, load_tokenizer

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
PATTERNS = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "config.json", "README.md"),
    *("*.txt", "*.bpe", "vocab.json", "encoder.json", "tokenizer*.json"),
)
WEIGHTS = (".safetensors", ".ckpt", *TORCH)
PADDING = "[PAD]"  # a row of Duo's that no text has
LENGTH = 1024
SCHEDULE = "poly:1"
"""α = t. Log-linear noise keeps an ε of 1/1000 of the text at t = 0, which no step of a sampler sees."""


@dataclass(frozen=True)
class PublicModel:
    """What was found: the network's spec, its tokenizer, its tensors, and where they are from."""

    spec: VelocitySpec
    tokenizer: Tokenizer
    found: Recognised
    tensors: PublicTensors = field(repr=False)
    config: Mapping[str, Any]
    origin: dict[str, Any]

    def weights(
        self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Our tensors one by one, so that nothing is in memory twice."""
        return ours_from(self.found, lambda name: self.tensors.get(name, device, dtype))

    def left_over(self) -> dict[str, Tensor]:
        """What has no place in our network (`layouts.left_over`)."""
        has_none = self.found.kind == OWN or self.spec.decoder is not None
        return {} if has_none else left_over(self.found, self.tensors.get)


def read_public(
    source: str | Path,
    *,
    revision: str = "",
    part: str = "",
    kind: str = "",
    heads: int = 0,
    tokenizer: Path | None = None,
    mask: int | None = None,
    block: int = 0,
    length: int = 0,
) -> PublicModel:
    """The model of a file, a folder or a hub name.

    Args:
        source: a .safetensors, .bin or .pth file, a folder with one, or NAME/NAME of the hub.
        revision: of the hub: a branch, a tag or a commit.
        part: which of several models in one torch file.
        kind: one of `layouts.KINDS` or `decoders.FAMILIES`, where the file fits several.
        heads: attention heads, where the file does not say.
        tokenizer: a folder with the tokenizer's files; none looks beside the weights, then for GPT-2's on the hub.
        mask: the mask token's id in a decoder's file, where its config does not say it.
        block: tokens in a block of a decoder that writes in blocks, which its config need not say.
        length: tokens in a row of a decoder, which takes any up to its config's; 0 is 1 024.
    """
    path = Path(source)
    fetched = not path.exists()
    if fetched:
        path = fetch(str(source), revision)
    elif revision:
        raise UserError(f"{path} is on this machine: --revision is for a name of the hub, leave it out")
    tensors, config = open_tensors(path, part), read_config(path)
    beside = path if path.is_dir() else path.parent
    words = {"kind": kind, "mask": mask, "block": block}
    if is_decoder(tensors.shapes):
        if heads:
            raise UserError("the heads of a llada, dream or sdar stand in its config.json: leave out --heads")
        found, spec, made = read_decoder(
            tensors.shapes, config, tokenizer or beside, length=length, schedule=SCHEDULE, **words
        )
    else:
        for name, given in {"mask": mask is not None, "block": block != 0, "length": length != 0}.items():
            if given:
                raise UserError(f"--{name} is for llada, dream and sdar, and this is none of them: leave it out")
        made = tokenizer_for(tokenizer, beside, known=OWN in config)
        found, spec, made = read_ddit(tensors.shapes, config, made, kind, heads)
    origin = {
        "source": str(source) if fetched else path.name,
        "revision": path.name if fetched else None,  # the commit
        "layout": found.kind,
        "part": part or None,
        "files": tensors.sha256(),
        "left_out": {**found.unused, **dict.fromkeys(tensors.beside, "another part of the torch file")},
        "names": {ours: list(theirs) for ours, theirs in found.table.items()},
        "licence": licence_beside(path),
    }
    return PublicModel(spec, made, found, tensors, config, origin)


def read_ddit(
    shapes: Shapes, config: Mapping[str, Any], tokenizer: Tokenizer, kind: str, heads: int
) -> tuple[Recognised, VelocitySpec, Tokenizer]:
    """The layout of a DDiT under public names or our own, what the network is, and its tokenizer."""
    own = own_spec(config, tokenizer)
    if own is not None and EMBEDDING in shapes:
        for word in (word for word, given in {"kind": kind, "heads": heads}.items() if given):
            raise UserError(f"--{word} is for public layouts, and config.json says all of this model: leave it out")
        return own_layout(own, shapes), own, tokenizer
    found = recognise(shapes, config, kind=kind, heads=heads, tokens=tokenizer.vocab_size)
    if found.vocab > tokenizer.vocab_size:
        tokenizer = with_padding(tokenizer)
    return found, spec_of(found, config, tokenizer) if own is None else agreed(own, found), tokenizer


def spec_of(found: Recognised, config: Mapping[str, Any], tokenizer: Tokenizer) -> VelocitySpec:
    """What the network of a public layout is."""
    return VelocitySpec(
        shape=found.shape,
        vocab=found.vocab,
        source="mask" if found.mask else "uniform",
        schedule=SCHEDULE,
        length=length_of(config),
        anchor=0,
        tokenizer=tokenizer.fingerprint,
        **words_of(found, config),
    )


def own_spec(config: Mapping[str, Any], tokenizer: Tokenizer) -> VelocitySpec | None:
    """What a config of `tsdfm export` says the network is; none of another config."""
    if OWN not in config:
        return None
    if not isinstance(config[OWN], Mapping):
        raise UserError(f"config.json is damaged: {OWN} is no table")
    spec = build(VelocitySpec, dict(config[OWN]), f"{OWN} of config.json")
    if spec.tokenizer != tokenizer.fingerprint:
        raise UserError("the tokenizer is not the one config.json speaks of: give its folder as --tokenizer")
    return spec


def agreed(own: VelocitySpec, found: Recognised) -> VelocitySpec:
    """The spec of a config, if the tensors of a public layout are of such a network."""
    sizes = ("width", "depth", "heads", "cond", "hidden")
    said = [getattr(own.shape, name) for name in sizes], own.vocab, own.source == "mask"
    if said != ([getattr(found.shape, name) for name in sizes], found.vocab, found.mask):
        raise UserError(f"config.json says one thing under {OWN} and the tensors another: they disagree")
    return own


def own_layout(spec: VelocitySpec, shapes: Shapes) -> Recognised:
    """A network under our own names: each of its tensors, in its shape, and no other."""
    with without_weights():
        wanted = {name: tuple(tensor.shape) for name, tensor in spec.network().state_dict().items()}
    if wrong := sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name)):
        had, want = shapes.get(wrong[0], "not there"), wanted.get(wrong[0], "not there")
        raise UserError(f"the file does not fit its config.json: {wrong[0]} is {had} and should be {want}")
    rows = spec.flow_source().tokens
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in wanted}
    return Recognised(OWN, spec.shape, rows, spec.vocab, names, (), {})


def length_of(config: Mapping[str, Any]) -> int:
    """The length of a row, where the config says it; all public models of this network have 1 024."""
    inner = config.get("model")
    both = {**(inner if isinstance(inner, Mapping) else {}), **config}
    key = next((key for key in ("model_length", "length") if both.get(key) is not None), "")
    value = whole(both[key], key) if key else LENGTH
    if value < 1:
        raise UserError(f"config.json says a row has {value} tokens")
    return value


def tokenizer_for(given: Path | None, beside: Path, known: bool) -> Tokenizer:
    """The tokenizer: of the folder given, of the files beside the weights, or GPT-2's from the hub.

    One that was not given, and of which no config tells (`known`), must be GPT-2's if it has as many tokens.
    """
    if given is not None:
        return load_tokenizer(given) if is_ours(given) else gpt2(given)
    files = {file.name for file in beside.iterdir()}
    if files & {"vocab.json", "encoder.json"} and files & {"merges.txt", "vocab.bpe"}:
        made: Tokenizer = gpt2(beside)
    else:
        made = load_tokenizer(beside) if is_ours(beside) else gpt2(flag="--tokenizer")
    if not known and made.vocab_size == GPT2_TOKENS and made.fingerprint != GPT2_FINGERPRINT:
        raise UserError(f"the tokenizer in {beside} has as many tokens as GPT-2's, and is another: give --tokenizer")
    return made


def with_padding(tokenizer: Tokenizer) -> Tokenizer:
    """The same with one token more, which no text is made of: a public vocabulary's row of padding."""
    if not isinstance(tokenizer, PairTokenizer):
        raise UserError("the network has one token more than its tokenizer, which only byte-level BPEs can be given")
    vocab = [*tokenizer.vocab, PADDING]
    return PairTokenizer(vocab, tokenizer.merges, tokenizer.end_of_text, f"{tokenizer.name}-padded")


def fetch(name: str, revision: str) -> Path:
    """The folder of a hub model, by the name of its commit, from the hub's cache if it is in it."""
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"no file or folder at {name}, and it is no hub name (OWNER/NAME)")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(f"fetching {name} needs the hub client: pip install 'tsdfm[hub]'") from None
    options: dict[str, Any] = {"revision": revision or None, "allow_patterns": list(PATTERNS)}
    try:
        return Path(snapshot_download(name, local_files_only=True, **options))
    except Exception:  # not there yet; the client has a class for each reason
        if reason := out_of_reach():
            raise UserError(f"{name} is not on this machine, and {reason}: give a folder with its files") from None
    try:
        return Path(snapshot_download(name, **options))
    except Exception as problem:
        first = (str(problem).strip().splitlines() or [""])[0][:160]
        raise UserError(
            f"could not fetch {name} ({type(problem).__name__}: {first}): check name and revision"
        ) from problem


def is_public(source: str | Path) -> bool:
    """Is it someone else's checkpoint: a file of weights, a folder of them that is none of ours, or a hub name?"""
    path = Path(source)
    member = path.name in ROLES and not path.is_dir()  # of a bundle
    if member or find_shipped(path) is not None or has_checkpoint(path) or (path / MANIFEST).is_file():
        return False
    if path.is_file():
        return path.suffix in WEIGHTS
    if path.is_dir():
        return (path / "config.json").is_file() or any(file.suffix in WEIGHTS for file in path.iterdir())
    return HUB_NAME.fullmatch(str(source)) is not None


def public_defaults(source: str | Path) -> Any:
    """How a public checkpoint is best sampled, as a config of `tsdfm export` says; none of another."""
    path = Path(source)
    return read_config(path if path.exists() else fetch(str(source), "")).get(DEFAULTS)


def load_public(source: str | Path, device: torch.device | str, **words: Any) -> tuple[Velocity, Tokenizer, str]:
    """A network that calls as any of ours does, its tokenizer, and its name, straight from a public checkpoint."""
    found = read_public(source, **words)
    net = assembled(found.spec, found.weights(device), device)
    flow = (found.spec.flow_source(), found.spec.flow_schedule())
    files = found.origin["files"]
    velocity = Velocity(found.spec, net, *flow, None, next(iter(files.values())))
    return velocity, found.tokenizer, found.spec.method or found.found.kind
