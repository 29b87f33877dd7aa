"""A bias of the logits that gives a model's texts the data's token frequencies: the least a distillation must beat.

Few-step texts have too many frequent tokens. How much of a better perplexity at matched entropy is only that, mended?
The baseline to answer it is the control with one number a token added to its logits,

    b_v = log (N·p_data(v) + a) − log (n_v + a),      n_v of N tokens of its own texts are v

where p_data is from the training split and the texts are the control's own at T = 1, of the same step count and of
another seed than those that are judged, four times as many. a keeps tokens of few occurrences where they are; it is
chosen so that the bias fitted to one half of the texts mends the frequencies of the other half best. A bias acts
through several steps, so the fit is made again from texts with the first bias if those are not yet right, and the best
is taken, which may be none at all. How far frequencies are off is KL(p_data ‖ p_own) in bits, with 1 added to counts,
always on texts the bias was not fitted to; `floor` is what as many tokens drawn from p_data itself would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.report.cells import Cell
from tsdfm.report.rows import Plain
from tsdfm.store.files import read_json, write_json
from tsdfm.store.manifest import input_sha256
from tsdfm.store.schema import Count, checked
from tsdfm.tokens.rows import TokenRows, count_tokens

SUFFIX = "+ unigram bias"
MORE = 4  # times as many texts as are judged
SMOOTH = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # what a may be
ENOUGH = 1.5  # times the floor: nearer the fit need not come
SEED = 1 << 20  # added to the seed of what is judged; a round further, one more


@dataclass(frozen=True)
class Fit:
    """A bias [V] and how far the token frequencies were off with 0, 1, … rounds of fitting (bits)."""

    bias: Tensor
    kl: tuple[float, ...]
    floor: float

    def plain(self) -> Plain:
        """For JSON."""
        return {"kl_before": self.kl[0], "kl_after": min(self.kl), "kl_rounds": list(self.kl), "floor": self.floor}


def fit(data: Tensor, texts: Callable[[Tensor | None, int], Tensor], seed: int) -> Fit:
    """Fit a bias to data counts [V]; `texts(bias, seed)` counts the tokens of texts made with it, two halves [2, V]."""
    halves = texts(None, seed + SEED)
    biases, off = [torch.zeros(len(data), dtype=torch.float64)], [divergence(data, halves.sum(0))]
    floor = divergence(data, drawn(data, int(halves.sum()), seed))
    for turn in (1, 2):
        if off[-1] <= ENOUGH * floor:
            break
        biases.append(biases[-1] + step(data, halves))
        halves = texts(biases[-1].float(), seed + SEED + turn)
        off.append(divergence(data, halves.sum(0)))
    best = min(range(len(biases)), key=lambda i: off[i])
    return Fit(biases[best].float(), tuple(off), floor)


def step(data: Tensor, halves: Tensor) -> Tensor:
    """b [V] float64 from counts of the data [V] and of two halves of a model's texts [2, V]."""
    return bias_of(data, halves.sum(0), min(SMOOTH, key=lambda a: left_over(data, halves, a)))


def bias_of(data: Tensor, own: Tensor, a: float) -> Tensor:
    """b [V] for one a."""
    wanted, found = smoothed(data, own, a)
    return wanted.log() - found.log()


def left_over(data: Tensor, halves: Tensor, a: float) -> float:
    """How far off one half would be with the bias of the other (to first order: counts grow by e^b), over both ways."""
    total = 0.0
    for mine, theirs in ((0, 1), (1, 0)):
        moved = halves[theirs].double() * bias_of(data, halves[mine], a).exp()
        total += divergence(data, moved * (halves[theirs].sum() / moved.sum()))
    return total


def divergence(data: Tensor, own: Tensor) -> float:
    """KL(p_data ‖ p_own) in bits."""
    wanted, found = smoothed(data, own, 1.0)
    p = wanted / wanted.sum()
    return float((p * (wanted.log2() - found.log2())).sum())


def smoothed(data: Tensor, own: Tensor, a: float) -> tuple[Tensor, Tensor]:
    """Both counts [V] on the scale of the texts, each plus a."""
    return data.double() * (own.sum().double() / data.sum()) + a, own.double() + a


def drawn(data: Tensor, count: int, seed: int) -> Tensor:
    """Counts [V] of `count` tokens drawn from the data's frequencies."""
    made = torch.Generator().manual_seed(seed)
    picks = torch.multinomial(data.double(), count, replacement=True, generator=made)
    return torch.bincount(picks, minlength=len(data))


def counts_of(cell: Cell, vocab: int) -> Tensor:
    """Tokens of a cell's even and odd texts [2, V], padding among them (a model must learn to stop), the anchor not."""
    rows = torch.tensor(cell.tokens)[:, cell.anchor :]
    return torch.stack([torch.bincount(half.reshape(-1), minlength=vocab) for half in (rows[::2], rows[1::2])])


def data_counts(tokens: Path, cells: Path | None = None) -> Tensor:
    """Tokens of the training split [V], counted as `counts_of` does, and kept in `cells` if that is given."""
    path = cells / f"unigram-{input_sha256(tokens)[:16]}.json" if cells is not None else None
    if path is not None and path.is_file():
        return torch.tensor(checked(read_json(path).get("counts"), list[Count], path), dtype=torch.int64)
    found = count_tokens(TokenRows(tokens, "train"))
    if path is not None:
        write_json(path, {"what": "tokens of the training split", "counts": found.tolist()})
    return torch.from_numpy(found)
