"""Small models, closed-form energies and a naive Navigate for the student tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tsdfm.distil.midpoint import CANDIDATES, PICK, REFINE, STREAM, USES
from tsdfm.distil.settings import NavigateSettings
from tsdfm.flow import CumulativeJump, Polynomial, RowNoise, source_from
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec

SHAPE = Shape(width=16, depth=2, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)


class PairEnergy:
    """E(x) = Σ_i w[x_i] + Σ_i c[x_i, x_{i+1}] in float64, with a count of what it scored. [MASK] has its own rows."""

    def __init__(self, tokens: int, seed: int = 0, size: float = 1.0) -> None:
        made = torch.Generator().manual_seed(seed)
        self.one = size * torch.randn(tokens, generator=made, dtype=torch.float64)
        self.two = size * torch.randn(tokens, tokens, generator=made, dtype=torch.float64)
        self.scored = 0

    def energy(self, x: Tensor) -> Tensor:
        self.scored += len(x)
        return self.one[x].sum(-1) + self.two[x[:, :-1], x[:, 1:]].sum(-1)


def flow_of(source: str, vocab: int = 5) -> CumulativeJump:
    return CumulativeJump(Polynomial(1.0), source_from(source, vocab))


def scene(source: str, rows: int, length: int = 6, vocab: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """States (with [MASK] for the mask source) and logits far from flat, float64."""
    made = torch.Generator().manual_seed(seed)
    tokens = vocab + (source == "mask")
    x_t = torch.randint(0, tokens, (rows, length), generator=made)
    return x_t, 1.5 * torch.randn(rows, length, vocab, generator=made, dtype=torch.float64)


def spec_of(source: str = "uniform", vocab: int = 11, length: int = 8, anchor: int = 1, **over: Any) -> VelocitySpec:
    made = {"shape": SHAPE, "vocab": vocab, "source": source, "schedule": "poly:1", "length": length}
    return VelocitySpec(**{**made, "anchor": anchor, "tokenizer": "abc", "step_size": True, **over})


def stirred(spec: VelocitySpec, seed: int = 0, size: float = 0.4) -> Any:
    """A float64 network whose logits are far from flat."""
    torch.manual_seed(seed)
    net = spec.network().double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=size)
    return net


# ── Algorithm 1 with plain numbers ──────────────────────────────────────────────────────────────────────────────────


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    top = max(logits)
    weights = [math.exp((l - top) / temperature) for l in logits]
    return [w / sum(weights) for w in weights]


def pick(weights: list[float], u: float) -> int:
    total, seen = sum(weights), 0.0
    for token, weight in enumerate(weights):
        seen += weight / total
        if u < seen:
            return token
    return max(i for i, w in enumerate(weights) if w > 0)


def jump_by_hand(
    x: int, logits: list[float], t: float, h: float, u: list[float], vocab: int, warmth: float = 1.0
) -> int:
    """The cumulative jump of a linear schedule at one position."""
    p = softmax(logits, warmth)
    p_z = p[x] if x < vocab else 0.0
    left = max(0.0, 1.0 - t - h) / (1.0 - t)
    leave = 1.0 - p_z if left == 0.0 else 1.0 - left ** (1.0 - p_z)
    if not u[0] < leave:
        return x
    return pick([0.0 if v == x else q for v, q in enumerate(p)], u[1])


def navigate_by_hand(
    x_t: list[int],
    logits: list[list[float]],
    t: float,
    h: float,
    numbers: dict[int, Any],
    energy: Any,
    settings: NavigateSettings,
    whole_entropy: float,
    *,
    mask: bool,
    explores: bool = True,
    refines: bool = True,
) -> list[int]:
    """Lines 4–25 of Algorithm 1 for one state, one position after another."""
    vocab, length = len(logits[0]), len(x_t)
    score = lambda x: float(energy.energy(torch.tensor([x]))[0])  # noqa: E731

    def jump(i: int, u: list[float], warmth: float) -> int:
        if mask and t + h >= 1.0 and x_t[i] != vocab:
            return x_t[i]  # the last step of the mask source touches masked positions alone
        return jump_by_hand(x_t[i], logits[i], t, h, u, vocab, warmth)

    if explores:
        entropies = [-sum(q * math.log(q) for q in softmax(row) if q > 0) for row in logits]
        share = sum(entropies) / length / whole_entropy
        base = settings.t_min + settings.delta_t * (1 - share)
        found = []
        for c in range(settings.k):
            place = c / (settings.k - 1) if settings.k > 1 else 0.5
            warmth = base * (settings.lambda_min + (settings.lambda_max - settings.lambda_min) * place)
            found.append([jump(i, numbers[CANDIDATES][c][i], warmth) for i in range(length)])
        energies = [score(x) for x in found]
        best = found[energies.index(min(energies))]
    else:
        best = [jump(i, numbers["blind"][i], 1.0) for i in range(length)]
    if not refines:
        return best
    refined = []
    for i in range(length):
        p = softmax(logits[i])
        proposed, top = pick(p, numbers[REFINE][i][0]), p.index(max(p))
        beta = settings.beta_0 * (1 - settings.alpha_beta * t)
        align = int(proposed == top) - int(best[i] == top)
        chance = 0.0 if proposed == best[i] else 1 - math.exp(-h / (1 - t))
        chance = min(max(chance * math.exp(align * max(p) * beta * settings.alpha_soft), 0.0), settings.p_max)
        refined.append(proposed if numbers[REFINE][i][1] < chance else best[i])
    return refined if score(refined) <= score(best) + settings.epsilon else best


def numbers_of(seed: int, row: int, length: int, k: int, call: int = 0, stream: int = 0) -> dict[Any, Any]:
    """The uniforms a navigated row uses in its call number `call`."""
    shapes = {CANDIDATES: (1, k, length, 2), PICK: (1,), REFINE: (1, length, 2)}
    out: dict[Any, Any] = {}
    for use, shape in shapes.items():
        own = RowNoise(seed, torch.tensor([row]), stream + STREAM)
        own.draws = call * USES + use
        out[use] = own.uniform(shape)[0].tolist()
    blind = RowNoise(seed, torch.tensor([row]), stream)
    blind.draws = call
    out["blind"] = blind.uniform((1, length, 2))[0].tolist()
    return out
