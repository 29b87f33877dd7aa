"""The solver: a model, a jump and a time grid turn noise into text.

One step is one call of the model, and a jump may ask for one more at the end (`Jump.final_pass`): the number of
function evaluations (NFE) of a solution counts the calls that were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.draw import shape_logits
from tsdfm.flow.jump import Finishes, Jump, PositionJump, Remembers, reads_of
from tsdfm.flow.logits import posterior_from_score, reshaped_score
from tsdfm.flow.noise import Noise, uniform

Model = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x_t [B, L] int64, t [B], h [B]) → logits [B, L, V]."""

ROOM = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits of a partial model that exist at once


@runtime_checkable
class PartialModel(Protocol):
    """A model that need not give the logits of all positions."""

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """All logits [B, L, V]."""
        ...

    def look(self, x_t: Tensor, t: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
        """One pass of the network: places [N] among the B·L positions, row after row → their logits [N, V]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """What `on_step` sees after each step. The tensors are the solver's own: copy what you keep past the call."""

    index: int
    t: float
    h: float
    before: Tensor
    after: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Limits:
    """Which tokens may stand where: position (b, l) takes tokens of `allowed[sets[b, l]]` alone.

    `sets` [B, L] or [L], int64; `allowed` [K, V], bool. Set 0 is every token, whatever its row says.
    """

    sets: Tensor
    allowed: Tensor

    def spread(self, x_0: Tensor, vocab: int) -> Tensor:
        """The sets [B, L] of the positions of a state, or one clear line."""
        if self.allowed.dim() != 2 or self.allowed.shape[1] != vocab:
            raise UserError(f"allowed tokens have the shape {tuple(self.allowed.shape)}, not [sets, {vocab}]")
        known = self.sets.to(self.allowed.device)
        if not bool(((known == 0) | self.allowed.any(1)[known]).all()):
            raise UserError("a position that is limited to no token at all cannot be written: allow at least one")
        try:
            return self.sets.to(x_0.device).expand_as(x_0)
        except RuntimeError:
            shapes = f"{tuple(self.sets.shape)}, the state {tuple(x_0.shape)}"
            raise UserError(f"the limits of positions have the shape {shapes}") from None


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
    bias: Tensor | None = None,
    limits: Limits | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_state: Callable[[int, float, Tensor], None] | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> Solution:
    """Walk x_0 [B, L] from t = 0 to t = 1 along `times` (a step count, or a grid).

    `given` (bool, [B, L] or [L]) marks positions that hold `given_tokens` from the first call of the model to the
    end: a prefix, or any infill. The model sees t and h in `time_dtype`; the jumps work in float64. Every step takes
    the same random numbers whatever happens in it, so with `RowNoise` a row does not depend on its neighbours.

    `bias` [V] is added to the logits, in float32 or better, before temperature and top-p: softmax((logits + bias)/T).
    −inf rules a token out. `limits` does so at some positions alone. All of them shape p(x_1 | x_t), whatever the jump
    reads: a score (`flow.reads_of`, which the model must then give) is turned into the posterior, shaped, and turned
    back; with the mask source its sum stays, which is how likely [MASK] is left.

    `on_state(passes, t, x)` is told after every pass how many there were, the time reached and the state [B, L], which
    is the solver's own. Unlike `on_step` it asks for no logits, so nothing is computed for its sake.

    A `PartialModel` is asked for the logits of those positions alone that are not given and may move in this step
    (`PositionJump.needs`), a chunk of them at a time: the same tokens for less work. A jump that looks at more than one
    position, such as a guide's, and `on_step` get all logits. The device is waited for at the end, to see whether all
    logits were numbers, and, with a partial model, before each pass, to count those positions.
    """
    points = grid(times) if isinstance(times, int) else check_grid(times)
    clamp, held = _clamp(x_0, given, given_tokens, jump.source.vocab)
    shaper = _Shaper(x_0.device, temperature, top_p, _checked(bias, jump.source.vocab, x_0.device))
    sets = None if limits is None else limits.spread(x_0, jump.source.vocab)
    shaper.allowed = None if limits is None else limits.allowed.to(x_0.device)
    sparing = None if on_step is not None or isinstance(jump, Remembers) else _sparing(model, jump)
    x, rows, nfe = clamp(x_0), x_0.shape[0], 0
    jump = jump.begin(x) if isinstance(jump, Remembers) else jump
    for index, (start, end) in enumerate(pairwise(points)):
        t = torch.full((rows,), start, dtype=torch.float64, device=x.device)
        h = torch.full((rows,), end - start, dtype=torch.float64, device=x.device)
        seen, nfe = (t.to(time_dtype), h.to(time_dtype)), nfe + 1
        if sparing is not None:
            x = _move_some(*sparing, x, t, h, seen, noise, held, sets, shaper)
        else:
            read, shown = shaper.read(jump, model(x, *seen), x, t[:, None], sets, on_step is not None)
            before, x = x, clamp(jump(x, read, t, h, noise))
            if on_step is not None:
                on_step(Step(index=index, t=start, h=end - start, before=before, after=x, logits=shown))
        if on_state is not None:
            on_state(nfe, end, x)
    if jump.final_pass:
        assert isinstance(jump, Finishes)
        one, none = (torch.full((rows,), value, dtype=time_dtype, device=x.device) for value in (1.0, 0.0))
        read, shown = shaper.read(jump, model(x, one, none), x, one[:, None], sets, on_step is not None)
        before, x, nfe = x, clamp(jump.finish(x, read, noise)), nfe + 1
        if on_step is not None:
            on_step(Step(index=len(points) - 1, t=1.0, h=0.0, before=before, after=x, logits=shown))
        if on_state is not None:
            on_state(nfe, 1.0, x)
    if bool(shaper.bad):
        raise UserError("the model gave logits that are not numbers (NaN or infinite): is the checkpoint sound?")
    return Solution(tokens=x, nfe=nfe)


def _sparing(model: Model, jump: Jump) -> tuple[PartialModel, PositionJump] | None:
    """The two, if they can do with some of the logits."""
    return (model, jump) if isinstance(model, PartialModel) and isinstance(jump, PositionJump) else None


def _move_some(
    model: PartialModel,
    jump: PositionJump,
    x: Tensor,
    t: Tensor,
    h: Tensor,
    seen: tuple[Tensor, Tensor],
    noise: Noise,
    held: Tensor | None,
    sets: Tensor | None,
    shaper: _Shaper,
) -> Tensor:
    """What `jump(x, logits, t, h, noise)` gives, by the logits of those positions alone that may move.

    Which ones is asked before the pass is launched: the device then waits for the host only as long as a launch takes.
    """
    u = uniform(noise, (*x.shape, 2), x.device)
    may = jump.needs(x, t, h, u)
    if held is not None:
        may = may & ~held
    places = may.flatten().nonzero().squeeze(-1)
    read = model.look(x, *seen)
    flat, uniforms = x.flatten(), u.flatten(0, 1)
    out = flat.clone()
    for part in torch.split(places, max(1, ROOM.get(x.device.type, ROOM["cpu"]) // jump.source.vocab)):
        # as one row of a state: all positions have the same t and h
        limited = None if sets is None else sets.flatten()[part]
        logits, _ = shaper.read(jump, read(part), flat[part], t[:1], limited)
        out[part] = jump.move(flat[part][None], logits[None], t[:1], h[:1], uniforms[part][None])[0]
    return out.view_as(x)


@dataclass
class _Shaper:
    """Logits […, V] as a jump is to see them; `bad` remembers whether any were not numbers."""

    device: torch.device
    temperature: float
    top_p: float
    bias: Tensor | None
    allowed: Tensor | None = None
    bad: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.bad = torch.zeros((), dtype=torch.bool, device=self.device)

    def read(
        self, jump: Jump | PositionJump, answer: Tensor, x: Tensor, t: Tensor, sets: Tensor | None, show: bool = False
    ) -> tuple[Tensor, Tensor]:
        """What the jump reads of a model's answer […, V] at x […] and t, and the logits of x_1 (if they are to `show`).

        `sets` […] are those of `Limits`, where there are any.
        """
        peak = answer.amax(-1)  # NaN if any is; all −inf is allowed, it means uniform
        self.bad |= (peak.isnan() | (peak == math.inf)).any()
        if reads_of(jump) == "posterior":
            shaped = self(answer, sets)
            return shaped, shaped
        plain = self.temperature == self.top_p == 1.0 and self.bias is None and sets is None
        if plain and not show:
            return answer, answer
        law = (jump.schedule, jump.source)
        shaped = self(posterior_from_score(answer, x, t, *law), sets)
        return answer if plain else reshaped_score(answer, shaped, x, t, *law), shaped

    def __call__(self, logits: Tensor, sets: Tensor | None = None) -> Tensor:
        """Logits of x_1 with the bias, the limits, temperature and top-p."""
        if self.bias is not None:
            logits = logits + self.bias.to(torch.promote_types(logits.dtype, torch.float32))
        if sets is not None and self.allowed is not None:
            few = sets.nonzero(as_tuple=True)
            logits = logits.index_put(few, logits[few].masked_fill(~self.allowed[sets[few]], -math.inf))
        return shape_logits(logits, self.temperature, self.top_p)


def _checked(bias: Tensor | None, vocab: int, device: torch.device) -> Tensor | None:
    if bias is None:
        return None
    if bias.shape != (vocab,):
        raise UserError(f"a bias has one number for each of the {vocab} tokens, not the shape {tuple(bias.shape)}")
    if bool((bias.isnan() | (bias == math.inf)).any()):
        raise UserError("a bias of the logits must be made of numbers or −inf: this one has NaN or +inf")
    return bias.to(device)


def _clamp(
    x_0: Tensor, given: Tensor | None, tokens: Tensor | None, vocab: int
) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
    """The function that puts the given tokens back in their places, and those places [B, L]."""
    if (given is None) != (tokens is None):
        raise UserError("given positions and given tokens come together: pass both or neither")
    if given is None or tokens is None:
        return (lambda x: x), None
    try:
        held, fixed = given.to(torch.bool).expand_as(x_0), tokens.to(x_0.dtype).expand_as(x_0)
    except RuntimeError:
        shapes = f"{tuple(given.shape)} and {tuple(tokens.shape)}"
        raise UserError(f"given positions and tokens have the shapes {shapes}, the state {tuple(x_0.shape)}") from None
    if bool((held & ((fixed < 0) | (fixed >= vocab))).any()):
        raise UserError(f"a given token lies outside the vocabulary of {vocab} tokens")
    return (lambda x: torch.where(held, fixed, x)), held
