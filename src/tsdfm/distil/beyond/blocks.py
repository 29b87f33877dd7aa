"""Choosing block by block (beyond the paper): each part of a text from the candidate the compass likes best there.

A choice among K whole candidates is worth log K nats at most, however long the text: with thirteen tokens moved it can
tell much about each, with hundreds next to nothing. Cut into B blocks, the same K draws make K^B texts. One sweep of
Gibbs sampling over the blocks, from a whole candidate, goes towards  Π_b 1/K · exp(−E(x)/T_E)  (boltzmann; it is there
at once where blocks do not interact), or walks downhill (lowest):

    for b in 1 … B:   x_b ← x_b^(c),   c chosen by the energies of the K texts that differ from x in block b alone

It costs K + B·K calls of the compass instead of K, and none of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from tsdfm.distil.navigate import select
from tsdfm.distil.settings import NavigateSettings


def cut(length: int, blocks: int) -> list[slice]:
    """`blocks` slices of nearly equal size that cover 0 … length (fewer, if there are not so many positions)."""
    count = min(blocks, length)
    edges = [length * b // count for b in range(count + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]


def sweep(
    score: Callable[[Tensor], Tensor], states: Tensor, start: Tensor, u: Tensor, settings: NavigateSettings
) -> tuple[Tensor, Tensor]:
    """One sweep from `start` [n, L] over candidates `states` [n, K, L] by uniforms u [n, B]: texts, and energies [n].

    `score` gives energies of states [n, K, L]. A block is offered from all candidates, so with the lowest energy, and
    a start that is one of them, no block makes the energy rise.
    """
    now = start.clone()
    each = torch.arange(len(states), device=states.device)
    energy = torch.zeros(len(states), device=states.device)
    for number, part in enumerate(cut(states.shape[-1], settings.blocks)):
        offered = now[:, None].expand_as(states).clone()
        offered[:, :, part] = states[:, :, part]
        energies = score(offered)
        pick = select(energies, u[:, number], settings)
        now, energy = offered[each, pick], energies[each, pick]
    return now, energy
