"""A walk: rows on their way from noise to text, and one step of them by one call of a model.

`flow.solver` takes rows from t = 0 to t = 1 together. A server takes steps of rows that began at other times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.draw import shape_logits
from tsdfm.flow.jump import Finishes, Jump, PositionJump, Remembers, Retimes, RowJump, Steps, reads_of, remembers, stops
from tsdfm.flow.logits import posterior_from_score, reshaped_score
from tsdfm.flow.noise import JoinedNoise, Noise, RowNoise, sent, uniform
from tsdfm.kernels.inverse import floats

Model = Callable[..., Tensor]
"""(x_t [B, L] int64, t [B], h [B]) → logits [B, L, V]; with `passes_a_call` where that is more than one. A model that
is `latent` takes a number λ [B] of [0, 1] besides: every text draws one in every step."""

WHOLE = 32  # steps of a walk that a model makes as one
ROOM = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits of a partial model that exist at once


@runtime_checkable
class PartialModel(Protocol):
    """A model that need not give the logits of all positions."""

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Tensor:
        """All logits [B, L, V]."""
        ...

    def look(self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """One pass of the network: places [N] among the B·L positions, row after row → their logits [N, V]."""
        ...


@runtime_checkable
class StepModel(Protocol):
    """A model that can make whole steps of some walks by itself: faster, and by the same numbers."""

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """All logits [B, L, V]."""
        ...

    def takes(self, walk: Walk, x: Tensor) -> bool:
        """Does it make steps of this walk?"""
        ...

    def step(self, walk: Walk, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """The state [B, L] after the step."""
        ...

    def solve(self, walk: Walk, x: Tensor, steps: Steps) -> Tensor:
        """The state [B, L] after all steps."""
        ...


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


def begin(
    model: Model,
    x_0: Tensor,
    jump: Jump,
    noise: Noise,
    *,
    given: tuple[Tensor | None, Tensor | None] = (None, None),
    dials: Sequence[tuple[float, float]] = ((1.0, 1.0),),
    bias: Tensor | None = None,
    limits: Limits | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> tuple[Walk, Tensor]:
    """The walk of the rows x_0 [B, L], and their first state. `dials` are temperature and top-p, for all or each."""
    vocab, device = jump.source.vocab, x_0.device
    held, fixed = _given(x_0, *given, vocab)
    shaper = Shaper(device, tuple(dials), _checked(bias, vocab, device))
    sets = None if limits is None else limits.spread(x_0, vocab)
    shaper.allowed = None if limits is None else limits.allowed.to(device)
    walk = Walk(model, jump, noise, shaper, held, fixed, sets, time_dtype)
    x = walk.clamp(x_0)
    return (replace(walk, jump=cast(Remembers, jump).begin(x)) if remembers(type(jump)) else walk), x


def reads_some(jump: Jump) -> bool:
    """Can the jump do with the logits of some positions?"""
    return isinstance(jump, RowJump) or (isinstance(jump, PositionJump) and not isinstance(jump, Remembers))


@dataclass(frozen=True)
class Walk:
    """Rows on their way from noise to text: all that stays the same over their steps, and the step itself.

    `fixed` [B, L] are the tokens where `held` [B, L]; `sets` [B, L] are those of the limits. Rows need not be at the
    same time, nor take steps of the same size, where the jump goes row by row (`LeaveJump.row_wise`).
    """

    model: Model
    jump: Jump
    noise: Noise
    shaper: Shaper
    held: Tensor | None = None
    fixed: Tensor | None = None
    sets: Tensor | None = None
    time_dtype: torch.dtype = torch.float32

    @staticmethod
    def together(walks: Sequence[Walk], model: Model) -> Walk:
        """The walk of the rows of all of them by one call of `model` a step, each as it would go by itself.

        They have the same jump, which goes row by row, no bias, and the same sets of allowed tokens.
        """
        first, noises = walks[0], [walk.joining for walk in walks]
        if any(walk.jump != first.jump or walk.shaper.bias is not None for walk in walks):
            raise ValueError("only rows with the same jump and without a bias share a step")
        dials = tuple(pair for walk, noise in zip(walks, noises, strict=True) for pair in walk.shaper.each(len(noise)))
        allowed = next((walk.shaper.allowed for walk in walks if walk.shaper.allowed is not None), None)
        shaper, counts = Shaper(first.shaper.device, dials, allowed=allowed), [len(noise) for noise in noises]
        held, fixed, sets = (_stacked([getattr(w, name) for w in walks], counts) for name in ("held", "fixed", "sets"))
        return Walk(model, first.jump, JoinedNoise.of(noises), shaper, held, fixed, sets, first.time_dtype)

    @property
    def joining(self) -> RowNoise | JoinedNoise:
        """Its noise, which may go on with other rows beside it."""
        if isinstance(self.noise, torch.Generator):
            raise ValueError("rows that share a generator go on together: give them a RowNoise")
        return self.noise

    def select(self, places: Sequence[int], index: Tensor) -> Walk:
        """The walk of some of its rows, each where it is: `places`, which the device has as `index`."""
        noise = self.joining
        dials = self.shaper.each(len(noise))
        shaper = Shaper(
            self.shaper.device, tuple(dials[place] for place in places), self.shaper.bias, self.shaper.allowed
        )
        held, fixed, sets = (None if x is None else x[index] for x in (self.held, self.fixed, self.sets))
        return replace(
            self, noise=JoinedNoise.of([noise]).select(index), shaper=shaper, held=held, fixed=fixed, sets=sets
        )

    def moved(self, device: torch.device, allowed: Tensor | None) -> Walk:
        """The same on a device, where `allowed` lie already; no device is waited for. The jump remembers nothing."""
        shaper = Shaper(device, self.shaper.dials, self.shaper.bias, None if self.shaper.allowed is None else allowed)
        held, fixed, sets = (None if x is None else sent(x, device) for x in (self.held, self.fixed, self.sets))
        return replace(self, noise=self.joining.moved(device), shaper=shaper, held=held, fixed=fixed, sets=sets)

    def clamp(self, x: Tensor) -> Tensor:
        """A state [B, L] with the given tokens in their places."""
        return x if self.held is None or self.fixed is None else torch.where(self.held, self.fixed, x)

    def step(self, x: Tensor, t: Tensor, h: Tensor, *, whole: bool = False) -> tuple[Tensor, Tensor | None]:
        """The state [B, L] after a step from t [B] to t + h [B], and the logits it was made by.

        One call of the model. The logits are there in any case with `whole`.
        """
        if not whole and isinstance(self.model, StepModel) and self.model.takes(self, x):
            return self.model.step(self, x, t, h), None
        jump, rows = self.jump, rows_of(x)
        told = jump.when(t, h) if isinstance(jump, Retimes) else t
        seen = (told.to(self.time_dtype), h.to(self.time_dtype), *self.latent(x))
        if not whole and isinstance(self.model, PartialModel) and reads_some(jump):
            return self.some(self.model, x, t, h, seen), None
        answer = self.model(x, *seen)
        if reads_of(jump) == "score":
            score, logits = self.shaper.score(jump, answer, x, t[:, None], self.sets, rows, show=whole)
            return self.clamp(jump(x, score, t, h, self.noise)), logits
        own = self.shaper.own(answer, self.sets)
        logits = self.shaper.shape(own, rows)
        if not isinstance(jump, RowJump):
            return self.clamp(jump(x, logits, t, h, self.noise)), logits
        u = uniform(self.noise, (*x.shape, 2), x.device)
        return self.clamp(jump.settle(x, *jump.read(logits, own, u), t, h, u)), logits

    def whole(self, x: Tensor, steps: Steps) -> StepModel | None:
        """The model, if it makes all of these steps by itself, none of them looked at."""
        model, jump, few = self.model, self.jump, len(steps) <= WHOLE
        plain = few and not jump.final_pass and not stops(type(jump))
        return model if plain and isinstance(model, StepModel) and model.takes(self, x) else None

    def all_at_once(self, model: Model, x: Tensor, times: Tensor, u: Tensor, *given: Tensor) -> list[Tensor]:
        """All steps from times[0] [K] of sizes times[1] [K] by uniforms u [K, B, L, 2], as `at_once` makes each."""
        bad = torch.zeros((), dtype=torch.bool, device=x.device)
        for t, h, uniforms in zip(*times[..., None].expand(-1, -1, len(x)), u, strict=True):
            x, wrong = self.at_once(model, x, t, h, uniforms, *given)
            bad = bad | wrong
        return [x, bad]

    def latent(self, x: Tensor) -> tuple[Tensor, ...]:
        """A number of each row's own [B], where the model is told such."""
        if not getattr(self.model, "latent", False):
            return ()
        return (uniform(self.noise, (len(x),), x.device).to(self.time_dtype),)

    def at_once(self, model: Model, x: Tensor, t: Tensor, h: Tensor, u: Tensor, *given: Tensor) -> list[Tensor]:
        """The step by uniforms u [B, L, 2] and all logits, as a function of tensors: [the state, whether any was bad].

        No device is waited for, so it may be recorded. `given` are held, fixed, sets and the allowed tokens, those that
        there are. The jump is one that goes row by row, and rows share their dials.
        """
        assert isinstance(self.jump, PositionJump)
        left = iter(given)
        held, fixed = (next(left), next(left)) if self.held is not None else (None, None)
        sets, allowed = (next(left), next(left)) if self.sets is not None else (None, None)
        shaper = Shaper(x.device, self.shaper.dials, self.shaper.bias, allowed)
        answer = model(x, t.to(self.time_dtype), h.to(self.time_dtype))
        logits = shaper.shape(shaper.own(answer, sets, everywhere=True), rows_of(x))
        moved = self.jump.move(x, logits, t, h, u)
        return [replace(self, held=held, fixed=fixed).clamp(moved), shaper.bad]

    def given(self) -> list[Tensor]:
        """What `at_once` is given."""
        return [x for x in (self.held, self.fixed, self.sets, self.shaper.allowed) if x is not None]

    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The jump's last word, by a pass at t = 1, and the logits of that pass."""
        assert isinstance(self.jump, Finishes)
        one, none = (torch.full((len(x),), value, dtype=self.time_dtype, device=x.device) for value in (1.0, 0.0))
        answer, rows = self.model(x, one, none, *self.latent(x)), rows_of(x)
        if reads_of(self.jump) == "score":
            read, logits = self.shaper.score(self.jump, answer, x, one[:, None], self.sets, rows, show=True)
        else:
            read = logits = self.shaper.shape(self.shaper.own(answer, self.sets), rows)
        return self.clamp(self.jump.finish(x, read, self.noise)), logits

    def some(self, model: PartialModel, x: Tensor, t: Tensor, h: Tensor, seen: tuple[Tensor, ...]) -> Tensor:
        """The state after a step, by the logits of those positions alone that the jump needs.

        Which ones is asked before the pass is launched: the device then waits for the host only as long as a launch
        takes.
        """
        jump, u = self.jump, uniform(self.noise, (*x.shape, 2), x.device)
        assert isinstance(jump, PositionJump | RowJump)
        may = jump.needs(x, t, h, u)
        if self.held is not None:
            may = may & ~self.held
        places = may.flatten().nonzero().squeeze(-1)
        read = model.look(x, *seen)
        flat, uniforms, rows = x.flatten(), u.flatten(0, 1), rows_of(x).flatten()
        out, scores = flat.clone(), torch.zeros(flat.shape, dtype=torch.float64, device=x.device)
        for part in self.parts(model, places, may):
            answer, limited, row = read(part), None if self.sets is None else self.sets.flatten()[part], rows[part]
            if isinstance(jump, RowJump):
                own = self.shaper.own(answer, limited)
                out[part], scores[part] = jump.read(self.shaper.shape(own, row), own, uniforms[part])
                continue
            if reads_of(jump) == "score":
                logits, _ = self.shaper.score(jump, answer, flat[part], t[row], limited, row)
            else:
                logits = self.shaper.shape(self.shaper.own(answer, limited), row)
            # each position as a state of one token, with the time of its row
            out[part] = jump.move(flat[part, None], logits[:, None], t[row], h[row], uniforms[part, None])[:, 0]
        if not isinstance(jump, RowJump):
            return out.view_as(x)
        return self.clamp(jump.settle(x, out.view_as(x), scores.view_as(x), t, h, u))

    def parts(self, model: PartialModel, places: Tensor, may: Tensor) -> list[Tensor]:
        """The places [N] of those that `may` [B, L] move, as many at a time as there is room for their logits.

        A model that goes `by_row` is asked for those of one row at a time, as it would be if the row were alone.
        """
        room = max(1, ROOM.get(places.device.type, ROOM["cpu"]) // self.jump.source.vocab)
        rows = torch.split(places, may.sum(1).tolist()) if getattr(model, "by_row", False) else (places,)
        return [part for row in rows for part in torch.split(row, room) if len(part)]


def _stacked(parts: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """Rows [B, L] of several walks, of so many rows each, as one tensor; none where nothing is said of any."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    return torch.cat(
        [some.new_zeros(n, some.shape[1]) if part is None else part for part, n in zip(parts, counts, strict=True)]
    )


def rows_of(x: Tensor) -> Tensor:
    """The row of each position of a state [B, L], [B, L]."""
    return torch.arange(len(x), device=x.device)[:, None].expand_as(x)


@dataclass
class Shaper:
    """Logits […, V] as a jump is to see them; `bad` remembers whether any were not numbers.

    `dials` are temperature and top-p, for all rows or one pair for each.
    """

    device: torch.device
    dials: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    bias: Tensor | None = None
    allowed: Tensor | None = None
    bad: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.bad = torch.zeros((), dtype=torch.bool, device=self.device)

    def each(self, rows: int) -> tuple[tuple[float, float], ...]:
        """The dials of each of so many rows."""
        return self.dials if len(self.dials) == rows else self.dials * rows

    def own(self, logits: Tensor, sets: Tensor | None, *, everywhere: bool = False) -> Tensor:
        """The model's own law, with `bias`, of the tokens that may be; `sets` […] are those of `Limits`, if any.

        `everywhere` looks at all positions, so that no device is waited for to count those with a limit.
        """
        peak = logits.amax(-1)  # NaN if any is; all −inf is allowed, it means uniform
        self.bad |= (peak.isnan() | (peak == math.inf)).any()
        if self.bias is not None:
            logits = logits + self.bias.to(torch.promote_types(logits.dtype, torch.float32))
        if everywhere and sets is not None and self.allowed is not None:
            return logits.masked_fill(~(self.allowed[sets] | (sets == 0)[..., None]), -math.inf)
        if sets is not None and self.allowed is not None:
            few = sets.nonzero(as_tuple=True)
            logits = logits.index_put(few, logits[few].masked_fill(~self.allowed[sets[few]], -math.inf))
        return logits

    def shape(self, own: Tensor, rows: Tensor) -> Tensor:
        """The same by temperature and top-p; `rows` […] says whose they are."""
        kinds = list(dict.fromkeys(self.dials))
        if len(kinds) == 1:
            return shape_logits(own, *kinds[0])
        which = torch.tensor([kinds.index(pair) for pair in self.dials], device=own.device)[rows]
        out = floats(own).clone()
        for kind, dials in enumerate(kinds):
            mine = (which == kind).nonzero(as_tuple=True)
            out[mine] = floats(shape_logits(own[mine], *dials))
        return out

    def score(
        self,
        jump: Jump | PositionJump,
        score: Tensor,
        x: Tensor,
        t: Tensor,
        sets: Tensor | None,
        rows: Tensor,
        show: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """log s […, V] at x […] and t as a jump reads it, and the shaped logits of x_1, if they are to `show`."""
        plain = set(self.dials) == {(1.0, 1.0)} and self.bias is None and sets is None
        if plain and not show:
            return self.own(score, None), score
        law = (jump.schedule, jump.source)
        shaped = self.shape(self.own(posterior_from_score(score, x, t, *law), sets), rows)
        return score if plain else reshaped_score(score, shaped, x, t, *law), shaped

    def check(self) -> None:
        """Refuse a model that gave something else than numbers; the device is waited for."""
        if bool(self.bad):
            raise UserError("the model gave logits that are not numbers (NaN or infinite): is the checkpoint sound?")


def _checked(bias: Tensor | None, vocab: int, device: torch.device) -> Tensor | None:
    if bias is None:
        return None
    if bias.shape != (vocab,):
        raise UserError(f"a bias has one number for each of the {vocab} tokens, not the shape {tuple(bias.shape)}")
    if bool((bias.isnan() | (bias == math.inf)).any()):
        raise UserError("a bias of the logits must be made of numbers or −inf: this one has NaN or +inf")
    return bias.to(device)


def _given(x_0: Tensor, given: Tensor | None, tokens: Tensor | None, vocab: int) -> tuple[Tensor | None, Tensor | None]:
    """The places [B, L] that are given, and their tokens [B, L]."""
    if (given is None) != (tokens is None):
        raise UserError("given positions and given tokens come together: pass both or neither")
    if given is None or tokens is None:
        return None, None
    try:
        held, fixed = given.to(torch.bool).expand_as(x_0), tokens.to(x_0.dtype).expand_as(x_0)
    except RuntimeError:
        shapes = f"{tuple(given.shape)} and {tuple(tokens.shape)}"
        raise UserError(f"given positions and tokens have the shapes {shapes}, the state {tuple(x_0.shape)}") from None
    if bool((held & ((fixed < 0) | (fixed >= vocab))).any()):
        raise UserError(f"a given token lies outside the vocabulary of {vocab} tokens")
    return held, fixed
