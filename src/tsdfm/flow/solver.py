"""The solver: a model, a jump and a time grid turn noise into text.

One step is one call of the model, so the number of function evaluations (NFE) of a solution is the number of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.draw import shape_logits
from tsdfm.flow.jump import Jump
from tsdfm.flow.noise import Noise

Model = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x_t [B, L] int64, t [B], h [B]) → logits [B, L, V]."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What `on_step` sees after each step. The tensors are the solver's own: copy what you keep past the call."""

    index: int
    t: float
    h: float
    before: Tensor
    after: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Finished tokens [B, L] without [MASK], and how many calls of the model they took."""

    tokens: Tensor
    nfe: int


def grid(steps: int) -> tuple[float, ...]:
    """`steps` equal steps from 0 to 1.

    >>> grid(4)
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    if steps < 1:
        raise UserError(f"the number of steps must be at least 1, not {steps}")
    return tuple(k / steps for k in range(steps + 1))


def check_grid(times: Sequence[float] | Tensor) -> tuple[float, ...]:
    """An explicit time grid as floats; it must rise from exactly 0 to exactly 1."""
    times = tuple(float(t) for t in (times.tolist() if isinstance(times, Tensor) else times))
    if len(times) < 2 or times[0] != 0.0 or times[-1] != 1.0:
        raise UserError("a time grid starts at 0 and ends at 1, for instance 0, 0.5, 1")
    for before, after in pairwise(times):
        if not before < after:
            raise UserError(f"a time grid must rise at every step, but {after} follows {before}")
    return times


@torch.no_grad()
def solve(
    model: Model,
    x_0: Tensor,
    times: int | Sequence[float] | Tensor,
    jump: Jump,
    noise: Noise,
    *,
    given: Tensor | None = None,
    given_tokens: Tensor | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    on_step: Callable[[Step], None] | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> Solution:
    """Walk x_0 [B, L] from t = 0 to t = 1 along `times` (a step count, or a grid).

    `given` (bool, [B, L] or [L]) marks positions that hold `given_tokens` from the first call of the model to the
    end: a prefix, or any infill. The model sees t and h in `time_dtype`; the jumps work in float64. Every step takes
    the same random numbers whatever happens in it, so with `RowNoise` a row does not depend on its neighbours.

    The device is waited for once, at the end, to see whether all logits were numbers.
    """
    points = grid(times) if isinstance(times, int) else check_grid(times)
    clamp = _clamp(x_0, given, given_tokens, jump.source.vocab)
    x, rows, nfe = clamp(x_0), x_0.shape[0], 0
    bad = torch.zeros((), dtype=torch.bool, device=x_0.device)
    for index, (start, end) in enumerate(pairwise(points)):
        t = torch.full((rows,), start, dtype=torch.float64, device=x.device)
        h = torch.full((rows,), end - start, dtype=torch.float64, device=x.device)
        logits = model(x, t.to(time_dtype), h.to(time_dtype))
        nfe += 1
        peak = logits.amax(-1)  # NaN if any is; all −inf is allowed, it means uniform
        bad = bad | (peak.isnan() | (peak == math.inf)).any()
        logits = shape_logits(logits, temperature, top_p)
        before, x = x, clamp(jump(x, logits, t, h, noise))
        if on_step is not None:
            on_step(Step(index=index, t=start, h=end - start, before=before, after=x, logits=logits))
    if bool(bad):
        raise UserError("the model gave logits that are not numbers (NaN or infinite): is the checkpoint sound?")
    return Solution(tokens=x, nfe=nfe)


def _clamp(x_0: Tensor, given: Tensor | None, tokens: Tensor | None, vocab: int) -> Callable[[Tensor], Tensor]:
    """The function that puts the given tokens back in their places."""
    if (given is None) != (tokens is None):
        raise UserError("given positions and given tokens come together: pass both or neither")
    if given is None or tokens is None:
        return lambda x: x
    try:
        held, fixed = given.to(torch.bool).expand_as(x_0), tokens.to(x_0.dtype).expand_as(x_0)
    except RuntimeError:
        shapes = f"{tuple(given.shape)} and {tuple(tokens.shape)}"
        raise UserError(f"given positions and tokens have the shapes {shapes}, the state {tuple(x_0.shape)}") from None
    if bool((held & ((fixed < 0) | (fixed >= vocab))).any()):
        raise UserError(f"a given token lies outside the vocabulary of {vocab} tokens")
    return lambda x: torch.where(held, fixed, x)
