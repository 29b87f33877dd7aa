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

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.jump import Jump, Paced, Stops
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


def grid_of(jump: Jump, steps: int) -> tuple[float, ...]:
    """The times of `steps` steps of a jump: its own grid where it has one (`Paced`), else equal steps."""
    return jump.grid(steps) if isinstance(jump, Paced) else grid(steps)


def check_grid(times: Sequence[float] | Tensor, *, part: bool = False) -> tuple[float, ...]:
    """An explicit time grid as floats; it must rise, from exactly 0 to exactly 1 or, as a `part`, anywhere between."""
    times = tuple(float(t) for t in (times.tolist() if isinstance(times, Tensor) else times))
    ends = (times[0] >= 0.0 and times[-1] <= 1.0) if part and times else times[:1] == (0.0,) and times[-1:] == (1.0,)
    if len(times) < 2 or not ends:
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
    bias: Tensor | None = None,
    limits: Limits | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_state: Callable[[int, float, Tensor], None] | None = None,
    time_dtype: torch.dtype = torch.float32,
    part: bool = False,
) -> Solution:
    """Walk x_0 [B, L] from t = 0 to t = 1 along `times` (a step count of the jump, or a grid).

    With `part` the grid may begin and end anywhere, and x_0 is the state at its beginning.

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
    points = grid_of(jump, times) if isinstance(times, int) else check_grid(times, part=part)
    held, dials = (given, given_tokens), ((temperature, top_p),)
    walk, x = begin(model, x_0, jump, noise, given=held, dials=dials, bias=bias, limits=limits, time_dtype=time_dtype)
    jump, rows, each = walk.jump, x_0.shape[0], getattr(model, "passes_a_call", 1)
    whole = walk.whole(x, points) if on_step is None and on_state is None else None
    if whole is not None:
        x = whole.solve(walk, x, points)
        walk.shaper.check()
        return Solution(tokens=x, passes=torch.full((rows,), each * (len(points) - 1), dtype=torch.int64))
    passes, going = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.int64)
    for index, (start, end) in enumerate(pairwise(points)):
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
            on_step(Step(index=len(points) - 1, t=1.0, h=0.0, before=before, after=x, logits=logits))
        if on_state is not None:
            on_state(each * len(points), 1.0, x)
    walk.shaper.check()
    return Solution(tokens=x, passes=passes)
