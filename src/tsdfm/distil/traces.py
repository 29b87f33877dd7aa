"""Texts that a model wrote, with the order in which it revealed their tokens, and states on the way to them.

A trace is a whole generation: the text x_1 and, of every free position, how many of them were revealed before it. A
prompt is given, and was there before all of them. A trace's states are the text with some of its tokens hidden again:
the latest ones, which is what the model saw on its way; the earliest; or any.

Shapes: n traces of L tokens, F of them free (behind the anchor); G blocks of S tokens, whole rows or parts of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from tsdfm import terminal
from tsdfm.engine.distributed import Processes
from tsdfm.flow import Jump, RowNoise, reads_of, solve
from tsdfm.flow.logits import Reads
from tsdfm.kernels.head import quick_logits
from tsdfm.nn.velocity import VelocitySpec, as_model
from tsdfm.tokens.loader import epoch_order
from tsdfm.tokens.rows import TokenRows

TRACE_STREAM, TIE_STREAM = 11, 12  # noise of the texts, and of the order of what one step reveals
ROWS = 64  # texts that are written together
Hidden = Literal["latest", "earliest", "random"]


@dataclass(frozen=True)
class Looks:
    """A network as a solver's `PartialModel`: logits of the positions alone that are asked for."""

    net: nn.Module
    spec: VelocitySpec
    reads: Reads = "posterior"

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """All logits [B, L, V], or the score."""
        logits: Tensor = as_model(self.net, self.spec, self.reads)(x_t, t, h)
        return logits

    def look(self, x_t: Tensor, t: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
        """One pass; the answer gives the logits [N, V] of places [N] among the B·L positions."""
        told = self.spec.told(t, h)
        hidden, head = self.net(x_t, *told, then=lambda hidden, head: (hidden.flatten(0, 1), head))
        mean, flat, times = self.spec.meaning(self.reads), x_t.flatten(), t.repeat_interleave(x_t.shape[1])

        def read(places: Tensor) -> Tensor:
            logits = quick_logits(hidden[places], head)
            return logits if mean is None else mean(logits, flat[places], times[places])

        return read


@dataclass
class Traces:
    """`count` traces of a network: text number i depends on the seed and on i alone.

    They are made once, when they are first asked for, and are part of the checkpoint: a resumed run goes on with them.
    The anchors and prompts are those of the training rows. Each process writes its share.
    """

    spec: VelocitySpec
    rows: TokenRows
    jump: Jump
    count: int
    steps: int
    temperature: float
    seed: int

    def allocate(self, world: Processes) -> None:
        """Room for the texts [n, L] and their order [n, F]."""
        self.world = world
        free = self.spec.length - self.spec.anchor
        self.tokens = torch.zeros(self.count, self.spec.length, dtype=torch.int32, device=world.device)
        self.order = torch.zeros(self.count, free, dtype=torch.int32, device=world.device)
        self.made = torch.zeros(1, dtype=torch.int64, device=world.device)
        self.there = False

    def of(self, numbers: Tensor, net: nn.Module) -> tuple[Tensor, Tensor]:
        """Texts [B, L] and orders [B, F] for running row numbers [B] on the host; `net` writes them if need be."""
        if not self.there and not int(self.made):
            self.make(net)
        self.there = True
        index = torch.from_numpy(epoch_order(numbers.numpy(), self.count, self.seed)).to(self.tokens.device)
        return self.tokens[index].long(), self.order[index].long()

    def given_of(self, numbers: Tensor) -> Tensor | None:
        """What is given [B, L] of the texts of running row numbers [B]; none where it is the anchor alone."""
        if not self.rows.prompted:
            return None
        return self.given(epoch_order(numbers.numpy(), self.count, self.seed))

    def given(self, texts: NDArray[np.int64]) -> Tensor:
        """What is given [B, L] of texts by their own numbers [B], on the device."""
        return torch.from_numpy(self.rows.given(texts % len(self.rows))).to(self.tokens.device)

    @torch.no_grad()
    def make(self, net: nn.Module) -> None:
        """Write all texts by `net`."""
        if self.world.main:
            terminal.detail(f"writing {self.count} texts of {self.steps} steps to learn from")
        for first in range(self.world.rank * ROWS, self.count, self.world.size * ROWS):
            part = slice(first, min(first + ROWS, self.count))
            self.tokens[part], self.order[part] = self.write(net, torch.arange(part.start, part.stop))
        if self.world.size > 1:
            for mine in (self.tokens, self.order):
                dist.all_reduce(mine)
        self.made.fill_(1)

    def write(self, net: nn.Module, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The texts [B, L] with these numbers, and the ranks [B, F] of their free positions in the order of reveal."""
        device, spec = self.tokens.device, self.spec
        anchors = torch.from_numpy(self.rows.take((numbers % len(self.rows)).numpy()).astype("int64")).to(device)
        noise = RowNoise(self.seed, numbers.to(device), TRACE_STREAM)
        x_0 = self.jump.source.draw(anchors.shape, noise, device)
        when = torch.zeros_like(x_0)

        def look(passes: int, t: float, x: Tensor) -> None:
            masked = x >= self.spec.vocab  # [MASK] has the id |V|
            when.masked_fill_((when == 0) & ~masked, passes).masked_fill_(masked, 0)  # what was taken back counts anew

        given = self.given(numbers.numpy())
        done = solve(
            Looks(net, spec, reads_of(self.jump)), x_0, self.steps, self.jump, noise, given=given, given_tokens=anchors,
            temperature=self.temperature, on_state=look,
        )  # fmt: skip
        tie = RowNoise(self.seed, numbers.to(device), TIE_STREAM).uniform(x_0.shape)
        return done.tokens, ranks((when + tie)[:, spec.anchor :])

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds of them."""
        return {"traces": {"tokens": self.tokens, "order": self.order, "made": self.made}}


def ranks(keys: Tensor) -> Tensor:
    """The rank of each of […, S] keys among the S, 0 for the smallest."""
    return keys.argsort(-1).argsort(-1)


class Remasked(NamedTuple):
    """States [G, S] of texts: `masked` are hidden, `noised` of them show a random token instead of [MASK].

    `learned` are the others of the masked ones, at which a masked model is asked; `room` [G, 1] is how many tokens of
    a block are not given.
    """

    x_t: Tensor
    masked: Tensor
    noised: Tensor
    room: Tensor

    @property
    def learned(self) -> Tensor:
        return self.masked & ~self.noised


def remask(
    x_1: Tensor,
    rank: Tensor,
    share: Tensor,
    u: Tensor,
    *,
    hide: Hidden,
    noised: float,
    mask: int,
    given: Tensor | None = None,
) -> Remasked:
    """Hide ⌈share·F⌉ tokens of each block x_1 [G, S] with ranks [G, S] of reveal; share [G], u [G, S, 3] uniforms.

    F are the tokens of a block that are not `given` [G, S]: all S, if nothing is.

    hide      the latest revealed, the earliest, or any of them
    noised    the chance that a hidden token is a random one instead of [MASK] (whose id is the number of tokens)
    """
    free = torch.ones_like(x_1, dtype=torch.bool) if given is None else ~given
    room = free.sum(-1, keepdim=True)
    count = torch.ceil(share[:, None] * room - 1e-9)
    key = u[..., 0] if hide == "random" else rank
    place = ranks(torch.where(free, key, torch.inf))  # of the free ones, 0 … F − 1
    masked = free & (place >= room - count if hide == "latest" else place < count)
    wrong = masked & (u[..., 1] < noised)
    random = (u[..., 2] * mask).long().clamp(max=mask - 1)
    return Remasked(torch.where(wrong, random, torch.where(masked, mask, x_1)), masked, wrong, room)
