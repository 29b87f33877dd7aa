"""The solver: a model, a jump and a time grid turn noise into text.

One step is one call of the model, and a jump may ask for one more at the end (`Jump.final_pass`). The number of
function evaluations (NFE) counts the network's passes that were really made for a text: a model whose call takes more
than one says so by `passes_a_call`, and a row that is finished early (`Stops`) counts none after that. A batch is
walked until its last row is finished, so a row's number is what it would take by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.jump import Jump, Paced, Steps, Stops
from tsdfm.flow.noise import Noise
from tsdfm.flow.walk import Limits, Model, begin


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
    """Finished tokens [B, L] without [MASK], and how many passes of the network each row took, [B] int64."""

    tokens: Tensor
    passes: Tensor

    @property
    def nfe(self) -> float:
        """Passes a text, the mean over rows."""
        return mean_passes(self.passes)


def mean_passes(passes: Tensor) -> float:
    """The mean of numbers of passes [B]; a whole number (int) where it is one.

    >>> mean_passes(torch.tensor([8, 8])), mean_passes(torch.tensor([3, 4]))
    (8, 3.5)
    """
    mean = float(passes.double().mean())
    return int(mean) if mean.is_integer() else mean


def grid(steps: int) -> tuple[float, ...]:
    """`steps` equal steps from 0 to 1.

    >>> grid(4)
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    if steps < 1:
        raise UserError(f"the number of steps must be at least 1, not {steps}")
    return tuple(k / steps for k in range(steps + 1))


def steps_of(jump: Jump, count: int) -> Steps:
    """`count` steps of a jump: its own where it has some (`Paced`), else equal ones."""
    return jump.steps_in(count) if isinstance(jump, Paced) else tuple(pairwise(grid(count)))


def path_of(jump: Jump, times: int | Sequence[float] | Tensor | Steps) -> Steps:
    """The steps that are meant by their number, by a grid of times, or by themselves."""
    if isinstance(times, int):
        return steps_of(jump, times)
    if not isinstance(next(iter(times), None), tuple):
        return check_grid(cast(Sequence[float], times))
    for start, end in cast(Steps, times):
        if not 0.0 <= start < end <= 1.0:
            raise UserError(f"a step goes from a time of [0, 1] to a later one, not from {start} to {end}")
    return tuple(cast(Steps, times))


def check_grid(times: Sequence[float] | Tensor) -> Steps:
    """The steps of an explicit time grid, which must rise from exactly 0 to exactly 1."""
    times = tuple(float(t) for t in (times.tolist() if isinstance(times, Tensor) else times))
    if len(times) < 2 or (times[0], times[-1]) != (0.0, 1.0):
        raise UserError("a time grid starts at 0 and ends at 1, for instance 0, 0.5, 1")
    for before, after in pairwise(times):
        if not before < after:
            raise UserError(f"a time grid must rise at every step, but {after} follows {before}")
    return tuple(pairwise(times))


@torch.no_grad()
def solve(
    model: Model,
    x_0: Tensor,
    times: int | Sequence[float] | Tensor | Steps,
    jump: Jump,
    noise: Noise,
    *,
    given: Tensor | None = None,
    given_tokens: Tensor | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    bias: Tensor | None = None,
    limits: Limits | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_state: Callable[[int, float, Tensor], None] | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> Solution:
    """Walk x_0 [B, L] along `times`: so many steps of the jump or a grid, from t = 0 to t = 1, or these steps.

    Steps that are given as such may begin and end anywhere, and x_0 is the state before the first of them.

    `given` (bool, [B, L] or [L]) marks positions that hold `given_tokens` from the first call of the model to the
    end: a prefix, or any infill. The model sees t and h in `time_dtype`; the jumps work in float64. Every step takes
    the same random numbers whatever happens in it, so with `RowNoise` a row does not depend on its neighbours.

    `bias` [V] is added to the logits, in float32 or better, before temperature and top-p: softmax((logits + bias)/T).
    −inf rules a token out. `limits` does so at some positions alone. All of them shape the law of x_1 that the jump
    reads (`flow.reads_of`, which the model must then give). A score is turned into the posterior, shaped, and turned
    back; with the mask source its sum stays, which is how likely [MASK] is left.

    `on_state(passes, t, x)` is told after every pass how many there were, the time reached and the state [B, L], which
    is the solver's own. Unlike `on_step` it asks for no logits, so nothing is computed for its sake.

    A `PartialModel` is asked for the logits of those positions alone that are not given and may move in this step
    (`PositionJump.needs`), a chunk of them at a time: the same tokens for less work. A jump that looks at more than one
    position, such as a guide's, and `on_step` get all logits. The device is waited for at the end, to see whether all
    logits were numbers, and, with a partial model, before each pass, to count those positions. A `RowJump` reads the
    positions that it needs in the same way and is then asked about the rows. A walk ends early when the jump says that
    all rows are done (`Stops`).
    """
    path = path_of(jump, times)
    held, dials = (given, given_tokens), ((temperature, top_p),)
    walk, x = begin(model, x_0, jump, noise, given=held, dials=dials, bias=bias, limits=limits, time_dtype=time_dtype)
    jump, rows, each = walk.jump, x_0.shape[0], getattr(model, "passes_a_call", 1)
    whole = walk.whole(x, path) if on_step is None and on_state is None else None
    if whole is not None:
        x = whole.solve(walk, x, path)
        walk.shaper.check()
        return Solution(tokens=x, passes=torch.full((rows,), each * len(path), dtype=torch.int64))
    passes, going = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.int64)
    for index, (start, end) in enumerate(path):
        before, passes = x, passes + each * going
        t, h = (torch.full((rows,), v, dtype=torch.float64, device=x.device) for v in (start, end - start))
        x, logits = walk.step(x, t, h, whole=on_step is not None)
        if on_step is not None:
            assert logits is not None
            on_step(Step(index=index, t=start, h=end - start, before=before, after=x, logits=logits))
        if on_state is not None:
            on_state(each * (index + 1), end, x)
        if isinstance(jump, Stops):
            going = (~jump.done(x)).to("cpu", torch.int64)
            if not bool(going.any()):
                break
    if jump.final_pass:
        before, passes = x, passes + each
        x, logits = walk.finish(x)
        if on_step is not None:
            on_step(Step(index=len(path), t=1.0, h=0.0, before=before, after=x, logits=logits))
        if on_state is not None:
            on_state(each * (len(path) + 1), 1.0, x)
    walk.shaper.check()
    return Solution(tokens=x, passes=passes)
