"""A trained velocity network with everything needed to use it: its flow, its row length, its tokenizer's name.

`VelocitySpec` is what a run writes into its manifest under `model`; `load_velocity` reads it back with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from tsdfm.engine.sharded import sharded_module
from tsdfm.errors import UserError
from tsdfm.flow.jump import Jump, jump_from
from tsdfm.flow.logits import Meaning, Reads, meaning_of
from tsdfm.flow.schedule import Schedule, schedule_from, sigma
from tsdfm.flow.source import Source, source_from
from tsdfm.flow.walk import Model
from tsdfm.kernels.head import quick_logits
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.decoder import Decoder, DecoderShape
from tsdfm.nn.layers import check_size, without_weights
from tsdfm.nn.network import TokenNet
from tsdfm.nn.settings import Shape
from tsdfm.settings import Settings, build, option, required, to_dict
from tsdfm.store.bundle import find_weights


@dataclass(frozen=True, kw_only=True)
class VelocitySpec(Settings):
    """What a velocity network is, apart from its weights: its sizes, its flow, what it is told and what it answers.

    `time` and `step_size` say whether it sees t and h (a network that does not see t is told 0); `clock` is how it is
    told the time, as t or as σ = −log κ (`flow.schedule.sigma`); `logits` is what its answer means (`flow.logits`), and
    with `shift` the one at i is read off the hidden state of i − 1; with `latent` it is told a number that belongs to
    the text; a `prompted` one learned answers to prompts, which a newline ends; `method` is how it was trained, in how
    many `rounds` of distillation where it has such, and `jump` how it writes unless told otherwise. A network that is a
    `decoder` instead of a DDiT has sizes of its own.
    """

    shape: Shape
    vocab: int = required("different tokens", low=1, high=2**20)
    source: str
    schedule: str
    length: int = required("tokens in a row", low=1, high=2**20)
    anchor: int = required("positions at the front of a row that are never noise", low=0, high=2**20)
    tokenizer: str
    step_size: bool = False
    time: bool = True
    clock: Literal["t", "sigma"] = "t"
    logits: str = "plain"
    method: str = ""
    jump: str = ""
    rounds: int = option(0, "rounds of distillation", low=0)
    shift: bool = False
    latent: bool = False
    prompted: bool = False
    decoder: DecoderShape | None = None

    def flow_source(self) -> Source:
        """The law of x_0."""
        return source_from(self.source, self.vocab)

    def flow_schedule(self) -> Schedule:
        """κ(t)."""
        return schedule_from(self.schedule)

    def network(self) -> TokenNet:
        """A fresh network of this kind. A decoder is called as a DDiT is."""
        check_size(self.shape, self.vocab, self.length)
        tokens = self.flow_source().tokens
        told = {"step_size": self.step_size, "shift": self.shift}
        if self.decoder is not None:
            again = self.shape.checkpoint
            return Decoder(self.decoder, vocab=self.vocab, tokens=tokens, checkpoint=again, **told)
        return DDiT(self.shape, vocab=self.vocab, tokens=tokens, latent=self.latent, **told)

    def plain_decoder(self) -> bool:
        """Is it a decoder without a condition? Its weights may be large, of 16 bits, and stay in their file."""
        return self.decoder is not None and not self.decoder.cond

    def plain(self) -> dict[str, Any]:
        """For a manifest."""
        return dict(to_dict(self))

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint: all that changes a number.

        Recomputing activations does not, nor what the model is called, nor in how many rounds it will be trained.
        Fields that came later are left out at their default, so that older checkpoints go on.
        """
        plain = replace(self, shape=replace(self.shape, checkpoint=False)).plain()
        later = {"time": True, "clock": "t", "logits": "plain", "shift": False, "latent": False}
        later |= {"prompted": False, "decoder": None}
        return {
            name: value
            for name, value in plain.items()
            if name not in ("method", "jump", "rounds") and (name not in later or value != later[name])
        }

    def told(self, t: Tensor, h: Tensor, latent: Tensor | None = None) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
        """What the network is given of times t [B], step sizes h [B] and, where there are any, latent numbers [B].

        Between them and the step size stands what a position that is a law would bring (`DDiT.embed`): nothing here.
        """
        if not self.time:
            t = torch.zeros_like(t)
        elif self.clock == "sigma":
            t = sigma(self.flow_schedule(), t).to(t.dtype)
        known = (t, h if self.step_size else None)
        return (*known, None, latent) if self.latent and latent is not None else known

    def meaning(self, reads: Reads = "posterior") -> Meaning | None:
        """How answers become logits of x_1, or the score if a jump reads that; none where they are."""
        return meaning_of(self.logits, self.flow_source(), self.flow_schedule(), reads)

    def flow_jump(self, name: str = "auto") -> Jump:
        """A jump by its name (`flow.jump_from`); `auto` is the one the model's method chose."""
        return jump_from(self.usual_jump() if name == "auto" else name, self.flow_schedule(), self.flow_source())

    def usual_jump(self) -> str:
        """The jump that the model's method chose; runs that did not record it have the one of their kind."""
        return self.jump or ("cumulative" if self.step_size else "euler")

    def match(self, other: VelocitySpec, what: str, *, rows: bool = True) -> None:
        """Refuse another vocabulary, tokenizer, source, place of the answers or, with `rows`, layout of rows."""
        for name in ("vocab", "tokenizer", "source", "shift", *(("length", "anchor") if rows else ())):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise UserError(f"{what} has {name} {theirs}, this model has {mine}: they do not belong together")


@dataclass(frozen=True)
class Velocity:
    """A network and its flow; calling it gives logits of x_1, as a solver wants them."""

    spec: VelocitySpec
    net: TokenNet
    source: Source = field(repr=False)
    schedule: Schedule = field(repr=False)
    checkpoint: Path | None = None
    sha256: str = ""

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Tensor:
        """p(x_1 | x_t[, t][, h][, λ]) as logits [B, L, |V|], whatever the network's own answer means."""
        out: Tensor = as_model(self.net, self.spec)(x_t, t, h, latent)
        return out

    def reading(self, reads: Reads) -> Model:
        """The model as something that reads the posterior, or the score, wants it."""
        return self if reads == "posterior" else as_model(self.net, self.spec, reads)

    def jump(self, name: str = "auto") -> Jump:
        """A jump by its name (`flow.jump_from`); `auto` is the one the model's method chose."""
        return self.spec.flow_jump(name)

    def run_by(self, runner: Callable[[nn.Module], nn.Module]) -> Velocity:
        """The same with its network called another way (`engine.runner`)."""
        return replace(self, net=cast(TokenNet, runner(self.net)))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.net.parameters()).device


def check_rows(spec: Any, rows: Any, owner: str, remedy: str = "use the tokens it was trained on") -> None:
    """Refuse rows of another kind (`TokenRows`) than the model of `spec`, which `owner` names, was trained on."""
    found = {"vocab": rows.vocab_size, "tokenizer": rows.fingerprint, "length": rows.length, "anchor": rows.anchor}
    for name, theirs in found.items():
        mine = getattr(spec, name)
        if mine != theirs:
            raise UserError(f"{rows.folder} has {name} {theirs}, {owner} has {mine}: {remedy}")


def as_model(net: nn.Module, spec: VelocitySpec, reads: Reads = "posterior") -> Any:
    """(x_t, t, h[, λ]) → logits of x_1, or the score, of a network that may be wrapped (DDP, FSDP), for a solver."""
    then = None if sharded_module(net) else quick_logits  # a copy of gathered weights would not stay true
    mean = spec.meaning(reads)

    def model(x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Tensor:
        logits: Tensor = net(x_t, *spec.told(t, h, latent), then=then)
        return logits if mean is None else mean(logits, x_t, t.view(-1, *[1] * (x_t.ndim - 1)))

    return model


def spec_in(manifest: dict[str, Any], path: Path) -> VelocitySpec:
    """What a manifest, which lies at `path`, says the network is."""
    if not isinstance(manifest.get("model"), dict):
        raise UserError(
            f"{path} holds no velocity network (its stage is {manifest.get('stage')!r}): give a teacher or student"
        )
    return build(VelocitySpec, manifest["model"], "model")


def load_velocity(
    path: str | Path,
    device: torch.device | str = "cpu",
    *,
    which: str = "ema",
    choose: str = "newest",
    role: str = "student",
) -> Velocity:
    """The network of a run (its newest or best checkpoint), of one checkpoint or of a bundle, in eval mode.

    `which` picks the averaged (`ema`) or the plain weights (`model`). `tsdfm-stories` and `tsdfm-stories/teacher` are
    those that came with tsdfm; `role` is the one of a bundle that is meant where its path names none.
    """
    found = find_weights(Path(path), role, which=which, choose=choose)
    spec = spec_in(found.manifest, found.place)
    if spec.decoder is None:
        check_size(spec.shape, spec.vocab, spec.length)
    try:
        net = assembled(spec, found.weights().items(), device, copy=not spec.plain_decoder())
    except ValueError as problem:
        raise UserError(f"the weights in {found.place} do not fit its manifest: {problem}") from None
    return Velocity(spec, net, spec.flow_source(), spec.flow_schedule(), found.place, found.sha256)


def assembled(
    spec: VelocitySpec, weights: Iterable[tuple[str, Tensor]], device: torch.device | str, *, copy: bool = False
) -> TokenNet:
    """A frozen network of these weights by name, on the device, each in memory once.

    Weights are float32; those of a decoder without a condition stay what they are, bf16 in public files. Others than
    the network's, in number or shape, are a ValueError. Without `copy`, weights of a mapped file stay in it, where they
    lie at other addresses than a network's own: products may round otherwise in the last bit.
    """
    with without_weights():
        net = spec.network()
    wanted = {name: tensor.shape for name, tensor in net.state_dict().items()}
    for name, tensor in weights:
        if wanted.pop(name, None) != tensor.shape:
            raise ValueError(f"{name} {list(tensor.shape)} has no place in it")
        placed = tensor.to(device, tensor.dtype if spec.plain_decoder() else torch.float32, copy=copy)
        owner, _, last = name.rpartition(".")
        net.get_submodule(owner).register_parameter(last, nn.Parameter(placed, requires_grad=False))
    if wanted:
        raise ValueError(f"{next(iter(wanted))} is missing")
    return net.to(device).eval().requires_grad_(False)  # what no file has: rates of sinusoids and rotations


def run_folder(path: Path) -> Path:
    """The run a checkpoint belongs to; a run's own folder is itself."""
    return path.parent.parent if path.parent.name == "checkpoints" else path
