"""The velocity network: a diffusion transformer over tokens (DDiT), with or without step-size conditioning."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tsdfm.nn.layers import Block, Norm, Rotary, ScalarEmbedding, at_places, modulate, places_of, through, zero_
from tsdfm.nn.network import TokenNet, shifted
from tsdfm.nn.settings import Shape

LATENT_SCALE = 1000.0  # neighbouring λ shall not look alike


class DDiT(TokenNet):
    """p_θ(x_1 | x_t, t[, h]) as logits.

    The teacher sees (x_t, t). The student and its semi-teacher also see the step size h (`step_size=True`,
    `TokenNet`). `tokens` counts the embedding rows: |V|, or |V| + 1 for the mask source. The head always has |V|
    columns, so that `[MASK]` cannot be predicted at all. With `shift` the answer at position i is read off the hidden
    state of i − 1, as in a model that predicts the next token; the first one's is its own. With `latent` the network is
    told a number λ of [0, 1] besides, which belongs to the text and says nothing of it: laws of single tokens that
    share λ make up a law of texts. Its embedding is added to those of all tokens.

    Example: `DDiT(NetSettings(preset="tiny").shape(), vocab=300, tokens=301)(x_t, t)` gives [B, L, 300].
    """

    def __init__(
        self,
        shape: Shape,
        *,
        vocab: int,
        tokens: int,
        step_size: bool = False,
        shift: bool = False,
        latent: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.vocab, self.shift = shape, vocab, shift
        self.embedding = nn.Embedding(tokens, shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.tell(shape.cond, step_size)
        self.latent = ScalarEmbedding(shape.width) if latent else None
        self.places = places_of(shape)
        self.rotary = Rotary(shape.width // shape.heads)
        self.blocks = nn.ModuleList(Block(shape, fuse=step_size) for _ in range(shape.depth))
        self.norm = Norm(shape.width)
        self.adaln = zero_(nn.Linear(shape.cond, 2 * shape.width))
        self.head = zero_(nn.Linear(shape.width, vocab))

    def hidden(
        self,
        x_t: Tensor,
        t: Tensor,
        h: Tensor | None = None,
        weights: Tensor | None = None,
        latent: Tensor | None = None,
    ) -> Tensor:
        """The final hidden state [B, L, D]; the head is linear in it."""
        cond = self.condition(t, h)
        x = at_places(self.embed(x_t, weights), self.places)
        if self.latent is not None:
            x = x + self.latent(LATENT_SCALE * (torch.full_like(t, 0.5) if latent is None else latent))[:, None]
        cos, sin = self.rotary(x_t.shape[1])
        x = through(self.blocks, x, cond, cos, sin, again=self.shape.checkpoint)
        shift, scale = self.adaln(self.fuser(cond)).chunk(2, dim=-1)
        out = modulate(self.norm(x), shift, scale)
        return shifted(out) if self.shift else out


def parameters(model: nn.Module) -> int:
    """How many weights a network has."""
    return sum(p.numel() for p in model.parameters())


def flops_per_token(shape: Shape, vocab: int, length: int) -> float:
    """Floating-point operations of one forward pass for one token: 2 per weight that multiplies, plus attention.

    The condition is computed once a sequence and is left out; 4·L·D a block is the score and the mixing.
    """
    matrices = shape.depth * (4 * shape.width**2 + 2 * shape.width * shape.hidden) + shape.width * vocab
    return 2.0 * matrices + 4.0 * shape.depth * length * shape.width
