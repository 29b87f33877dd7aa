"""Fewer candidates where they agree: a row stops drawing when the energies it has, two or more, lie close together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tsdfm.distil.settings import NavigateSettings


def until_agreed(
    draw: Callable[[Tensor, Tensor, Tensor], Tensor],
    score: Callable[[Tensor], Tensor],
    rows: Tensor,
    temperature: Tensor,
    u: Tensor,
    settings: NavigateSettings,
) -> tuple[Tensor, Tensor]:
    """Candidates [n, K, L] one after another, and their energies [n, K], for the states `rows` [n].

    `draw(rows, temperature [n, k], u [n, k, L, 2])` gives states [n, k, L] and `score` their energies. A row stops when
    its energies lie within `agree`; what was not drawn has energy +inf and repeats the first candidate.
    """
    k = settings.k
    states = draw(rows, temperature[:, :2], u[:, :2])
    energies = score(states)
    states = torch.cat([states, states[:, :1].expand(-1, k - states.shape[1], -1)], dim=1)
    energies = torch.nn.functional.pad(energies, (0, k - energies.shape[1]), value=torch.inf)
    for c in range(2, k):
        drawn = energies[:, :c]
        known = drawn.isfinite()
        low = drawn.amin(-1)
        high = torch.where(known, drawn, -torch.inf).amax(-1)
        go = (known[:, -1] & (high - low > settings.agree)).nonzero()[:, 0]
        if not len(go):
            break
        more = draw(rows[go], temperature[go, c : c + 1], u[go, c : c + 1])
        states[go, c], energies[go, c] = more[:, 0], score(more)[:, 0]
    return states, energies
