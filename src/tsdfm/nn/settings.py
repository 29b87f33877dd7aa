"""The size of a network: one dial, the width, sizes the rest; presets name useful settings of the dial."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.settings import Settings, nearest, option, required

PRESETS = {"tiny": 128, "small": 384, "170m": 768, "1b3": 2048}
CONDITION = {"1b3": 256}  # as the public 1.3B files have it; others 128


@dataclass(frozen=True, kw_only=True)
class NetSettings(Settings):
    """Width is the dial; what is left at none follows from it. 768 gives the paper's 12 blocks, 2 048 gives 21."""

    preset: str = option("small", "size by name: tiny (128 wide), small (384), 170m (768), 1b3 (2048)")
    width: int | None = option(None, "width of the residual stream; none takes the preset's", low=1, high=2**17)
    depth: int | None = option(None, "blocks; none gives 12·(width/768)^0.57, rounded", low=1, high=1024)
    heads: int | None = option(
        None, "attention heads; none gives heads of 64 (of 32 below width 256)", low=1, high=1024
    )
    cond: int | None = option(
        None, "width of the condition that drives adaLN; none gives 128, and 256 for 1b3", low=1, high=2**17
    )
    mlp_ratio: int = option(4, "hidden width of the MLP over the width", low=1, high=64)
    dropout: float = option(0.1, "dropout after attention and MLP, while training", low=0, below=1)
    checkpoint: bool = option(False, "recompute activations in the backward pass: less memory, a third more time")
    positions: int = option(
        0, "also learn an embedding of each place, for rows up to so long (beside rotary); 0: none", low=0, high=2**20
    )

    def shape(self) -> Shape:
        """The concrete sizes, checked."""
        if self.preset not in PRESETS:
            raise UserError(f"unknown preset {self.preset!r}{nearest(self.preset, PRESETS)}")
        width = self.width or PRESETS[self.preset]
        heads = self.heads or max(1, width // (64 if width >= 256 else 32))
        if width % heads or (width // heads) % 2:
            raise UserError(
                f"width {width} does not split into {heads} heads of an even size: change net.width or net.heads"
            )
        return Shape(
            width=width,
            depth=self.depth or max(1, round(12 * (width / 768) ** 0.57)),
            heads=heads,
            cond=self.cond or CONDITION.get(self.preset, 128),
            hidden=self.mlp_ratio * width,
            dropout=self.dropout,
            checkpoint=self.checkpoint,
            positions=self.positions,
        )


@dataclass(frozen=True, kw_only=True)
class Shape(Settings):
    """A network's concrete sizes."""

    width: int = required("width of the residual stream", low=1, high=2**17)
    depth: int = required("blocks", low=1, high=1024)
    heads: int = required("attention heads", low=1, high=1024)
    cond: int = required("width of the condition", low=1, high=2**17)
    hidden: int = required("hidden width of the MLP", low=1, high=2**23)
    dropout: float = required("dropout while training", low=0, below=1)
    checkpoint: bool = required("are activations recomputed?")
    positions: int = option(0, "places that have a learned embedding", low=0, high=2**20)

    def weights(self, vocab: int) -> int:
        """About how many weights a network of this shape has: those of its matrices, from tokens to logits."""
        block = 4 * self.width**2 + 2 * self.width * self.hidden + 6 * self.width * self.cond
        return self.depth * block + (2 * vocab + self.positions) * self.width

    def check(self, vocab: int) -> None:
        """Refuse a network whose weights alone, of 4 bytes, would not fit into memory."""
        count = self.weights(vocab)
        check_memory(4 * count, f"a network of {count:,} weights", "lower net.width or net.depth")
