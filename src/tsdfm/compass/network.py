"""The energy network: a transformer encoder without time, pooled by attention to one number.

Shapes: B batch, L length, D width, C condition width, H heads, E = D/H head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.errors import UserError
from tsdfm.flow.schedule import Schedule, schedule_from
from tsdfm.flow.source import Source, source_from
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.decoder import DecoderBlock, DecoderShape, seen_by
from tsdfm.nn.layers import Block, Norm, Rotary, at_places, check_size, places_of, through
from tsdfm.nn.network import condition_of, fill
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.settings import Settings, required, to_dict


class EnergyNet(nn.Module):
    """E(x) [B] of token states x [B, L], of any length.

    The blocks are a velocity network's: a DDiT's, or those of a decoder. Where that one has silu(time(t)), this one has
    a learned constant [C]: it is told nothing of t, and can still take over a velocity network's lower blocks.
    """

    def __init__(self, shape: Shape, *, tokens: int, decoder: DecoderShape | None = None) -> None:
        super().__init__()
        self.shape, self.decoder = shape, decoder
        self.embedding = nn.Embedding(tokens, shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.places = places_of(shape)
        self.constant = nn.Parameter(torch.randn(shape.cond))
        self.rotary = Rotary(decoder.head, decoder.theta) if decoder else Rotary(shape.width // shape.heads)
        self.blocks = nn.ModuleList(
            DecoderBlock(decoder) if decoder else Block(shape, fuse=False) for _ in range(shape.depth)
        )
        self.pool = AttentionPool(shape)

    def forward(self, x: Tensor) -> Tensor:
        """E(x) [B] of token states x [B, L]."""
        return self.of(self.embedding(x))

    def of(self, embedded: Tensor) -> Tensor:
        """E [B] of the embeddings [B, L, D] of token states."""
        hidden = at_places(embedded, self.places)
        cond = self.constant.expand(len(embedded), -1)
        told: tuple[Tensor | None, ...] = (cond, *self.rotary(embedded.shape[1]))
        if self.decoder is not None:
            told = (*told, seen_by(self.decoder.block, embedded.shape[1], embedded.device))
        hidden = through(self.blocks, hidden, *told, again=self.shape.checkpoint)
        energy: Tensor = self.pool(hidden)
        return energy


class AttentionPool(nn.Module):
    """Attention from a learned query to all positions, then a two-layer MLP to a scalar. [B, L, D] → [B].

    With a learned query the scores q·(K x) are linear in x, and mixing commutes with the value map, so keys fold into
    one vector a head and values are mapped after mixing: the same function as the usual attention, at 1/D of its cost.
    That lets it run in float32 always. Candidates differ by hundredths, which bf16 (8 bits) would round away.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, heads = shape.width, shape.heads
        self.norm = Norm(width)
        self.query = nn.Linear(width, heads, bias=False)
        self.value = nn.Parameter(torch.randn(heads, width, width // heads) * width**-0.5)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(approximate="tanh"), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] → [B], in float32 or better: softmax over positions of q·x, mixed, mapped, and the MLP."""
        with torch.autocast(x.device.type, enabled=False):
            x = self.norm(x)
            weights = self.query(x).softmax(dim=1)  # [B, L, H]
            mixed = weights.transpose(1, 2) @ x  # [B, H, D]
            values = torch.einsum("bhd,hde->bhe", mixed, self.value).flatten(1)
            energy: Tensor = self.head(values).squeeze(-1)
        return energy


@dataclass(frozen=True, kw_only=True)
class CompassSpec(Settings):
    """What a compass is, apart from its weights; written into its manifest under `compass`."""

    shape: Shape
    vocab: int = required("different tokens", low=1, high=2**20)
    source: str
    schedule: str
    length: int = required("tokens in a row", low=1, high=2**20)
    anchor: int = required("positions at the front of a row that are never noise", low=0, high=2**20)
    tokenizer: str
    objective: str
    decoder: DecoderShape | None = None

    def flow_source(self) -> Source:
        """The law of x_0."""
        return source_from(self.source, self.vocab)

    def flow_schedule(self) -> Schedule:
        """κ(t)."""
        return schedule_from(self.schedule)

    def network(self) -> EnergyNet:
        """A fresh network of this kind."""
        check_size(self.shape, self.vocab, self.length)
        return EnergyNet(self.shape, tokens=self.flow_source().tokens, decoder=self.decoder)

    def plain(self) -> dict[str, Any]:
        """For a manifest."""
        return dict(to_dict(self))

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint: all that changes a number, as recomputing does not."""
        plain = replace(self, shape=replace(self.shape, checkpoint=False)).plain()
        return {name: value for name, value in plain.items() if name != "decoder" or value is not None}

    def match(self, other: VelocitySpec | CompassSpec, what: str) -> None:
        """Refuse another vocabulary, tokenizer or source than this compass's. Lengths may differ.

        A compass of plain text may be used with a model of answers, whose rows have an anchor: the paper's was.
        """
        prompted = isinstance(other, VelocitySpec) and other.prompted
        for name in ("vocab", "tokenizer", "source", *(() if prompted else ("anchor",))):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise UserError(f"{what} has {name} {theirs}, the compass has {mine}: they do not belong together")


def spec_from(teacher: VelocitySpec, shape: Shape, objective: str, decoder: DecoderShape | None = None) -> CompassSpec:
    """The compass that goes with a teacher."""
    return CompassSpec(
        shape=shape,
        vocab=teacher.vocab,
        source=teacher.source,
        schedule=teacher.schedule,
        length=teacher.length,
        anchor=teacher.anchor,
        tokenizer=teacher.tokenizer,
        objective=objective,
        decoder=decoder,
    )


@torch.no_grad()
def start_from_teacher(net: EnergyNet, teacher: Velocity) -> None:
    """Take over the embedding, the lower blocks, and the mean over t ∈ (0, 1) of the condition it has at t."""
    theirs, mine = teacher.spec.shape, net.shape
    parts = ("width", "heads", "cond", "hidden", "positions") if net.decoder is None else ()  # a decoder has its own
    same = all(getattr(theirs, part) == getattr(mine, part) for part in parts)
    if not same or theirs.depth < mine.depth or teacher.spec.step_size:
        raise UserError(
            f"init = teacher needs its width {theirs.width}, heads {theirs.heads}, cond {theirs.cond}, mlp_ratio "
            f"{theirs.hidden // theirs.width}, positions {theirs.positions} and at most {theirs.depth} blocks, without "
            "step-size conditioning: "
            "change net.*, or use init = fresh"
        )
    net.embedding.load_state_dict(teacher.net.embedding.state_dict())
    if net.places is not None and isinstance(teacher.net, DDiT) and teacher.net.places is not None:
        net.places.load_state_dict(teacher.net.places.state_dict())
    for block, source in zip(net.blocks, teacher.net.blocks, strict=False):
        fill(block, source.state_dict())
    if condition_of(teacher.net.state_dict()):
        t = (torch.arange(64, device=teacher.device) + 0.5) / 64
        net.constant.copy_(teacher.net.condition(teacher.spec.told(t, t)[0], None).mean(0))
