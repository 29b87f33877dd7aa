"""Dream: masked diffusion with shifted answers and context-adaptive weights, Ye et al. 2025 (2508.15487).

The answer at position i is read off the hidden state of i − 1, as in the autoregressive models that Dream starts from
(`VelocitySpec.shift`); the first position's is its own. A row is masked as LLaDA masks it, and a masked token weighs by
how much is known around it instead of by 1/p (CART):

    w_n = ½ Σ_{i known} g(1−g)^{|n−i|−1},     g = 0.3

It is 1 where all else is known and 0 where nothing is: from an all-mask row, with which every text begins, nothing
would be learned. So a masked position weighs at least `floor` here; 0 is CART as it stands. What is given in every row,
its anchor, does not count as known.

    dream-origin    each mask is revealed with probability (κ(s) − κ(t))/(1 − κ(t)): MDLM's ancestral step
    dream-maskgit   of a row's n masks the ⌊n·(κ(s) − κ(t))/(1 − κ(t))⌋ surest are revealed: highest p(x̂)
    dream-margin    the same by the likeliest token's lead, p_1 − p_2
    dream-entropy   the same by the negative entropy
    dream-entropy:0.2   τ = 0.2 (`alg_temp`): positions are drawn without replacement, ∝ e^{score/τ}; 0 takes the surest

Counts are each row's own; the public code takes one mean over the batch, and its time grid ends at 1/1000, not at 0.
Scores are of the model's own law (`methods/_orders.py`); the public code's are of the law after temperature and top-p.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker
from tsdfm.methods._orders import OrderJump, first, gumbel
from tsdfm.methods.llada import LLaDA, LLaDALoss, LLaDASettings
from tsdfm.settings import option

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Schedule, Source
    from tsdfm.nn.velocity import VelocitySpec

ORDERS = {"maskgit": "confidence", "margin": "margin", "entropy": "entropy"}


@dataclass(frozen=True, kw_only=True)
class DreamSettings(LLaDASettings):
    """Dream training: a network that fills in masked tokens, those first of which the neighbours are known."""

    short: float = option(0.0, "share of the batches that are cut to a random length")
    cart: float = option(
        0.3, "how fast the weight of what is known falls with its distance: g(1−g)^(d−1)", above=0, below=1
    )
    floor: float = option(
        0.1, "least weight of a masked token; 0 is plain CART, which learns nothing of all-mask rows", low=0
    )


@dataclass(frozen=True)
class DreamLoss(LLaDALoss):
    """−log p(x_1) at masked positions, weighted by what is known around them; the mean is over all positions."""

    cart: float = 0.3
    floor: float = 0.0

    def weight(self, x_t: Tensor, t: Tensor) -> Tensor:
        """max(w, floor) where x_t [B, L] is [MASK], 0 elsewhere: one product with a matrix [L, L] of distances."""
        import torch

        masked = x_t.eq(self.source.tokens - 1)  # [MASK] is the last token
        place = torch.arange(x_t.shape[1], device=x_t.device, dtype=torch.float64)
        distance = (place[:, None] - place).abs()
        share = torch.where(distance > 0, 0.5 * self.cart * (1.0 - self.cart) ** (distance - 1.0), 0.0)
        return ((~masked).double() @ share).clamp(min=self.floor) * masked


@dataclass(frozen=True)
class DreamJump(OrderJump):
    """As many of a row's masks as the schedule says, the surest first, or drawn by their scores with `alg_temp`."""

    alg_temp: float = 0.0

    def goes(self, masked: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        import torch

        share = 1.0 - self.schedule.survival(t.double(), (t + h).double())
        if self.order == "random":
            return u < share[:, None]
        count = torch.floor(masked.sum(-1) * share + 1e-9)  # a whole number must not fall short by rounding
        keys = scores / self.alg_temp + gumbel(u) if self.alg_temp else scores
        return first(masked, keys, count)


def tempered(order: str, schedule: Schedule, source: Source, alg_temp: float = 0.0) -> DreamJump:
    """The jump with the temperature of its order."""
    if not 0 <= alg_temp < float("inf"):
        raise UserError(f"the dial of dream's orders is a temperature of at least 0, not {alg_temp}")
    return DreamJump(schedule, source, order, alg_temp)


class Dream(LLaDA):
    """Diffusion reasoning model: LLaDA's noise, shifted answers, other weights and orders."""

    name, title = "dream", "Dream"
    help = "masked diffusion with shifted answers and weights by context; orders by confidence, margin or entropy"
    settings: ClassVar[type] = DreamSettings
    jump = "dream-origin"

    def words(self, settings: Any = None) -> dict[str, Any]:
        return {**super().words(settings), "shift": True}

    def loss(self, settings: DreamSettings, spec: VelocitySpec) -> DreamLoss:  # type: ignore[override]
        flow = spec.flow_schedule(), spec.flow_source()
        return DreamLoss(*flow, settings.epsilon, settings.short, settings.cart, settings.floor)

    def jumps(self) -> dict[str, JumpMaker]:
        made: dict[str, JumpMaker] = {f"dream-{name}": partial(tempered, order) for name, order in ORDERS.items()}
        return {**made, "dream-origin": partial(DreamJump, order="random")}


METHOD = Dream()
