"""Texts longer than the model: written in windows that move on by a stride (semi-autoregressive, as MDLM has it).

The first window writes as many tokens as the model has. Each later one keeps the anchor and the last tokens of what is
there as given, and writes `stride` tokens after them, in a whole generation of its own. Any model that can be given a
prefix can do so. A window whose tokens are all given, as by a long prefix, takes no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, Source, Step
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.samples.given import Given

OnStep = Callable[[Step], None]
OnState = Callable[[int, float, Tensor], None]
Told = tuple[OnStep | None, OnState | None]
"""`on_step` and `on_state` of a solver."""
STREAM = 1 << 22  # of the random numbers of the windows after the first


@dataclass(frozen=True)
class Window:
    """The columns [L] of a text [N] that the model sees, of which it writes the last `new`; `number` is 0, 1, 2, …"""

    number: int
    columns: Tensor
    new: int

    @property
    def written(self) -> Tensor:
        """The columns that are written here."""
        return self.columns[len(self.columns) - self.new :]

    def known(self, state: Tensor, given: Given | None) -> Given | None:
        """What is given [B, L] of states [B, N]: all before the new tokens, and of those what the user gave."""
        if given is None and self.number == 0:
            return None
        old = len(self.columns) - self.new
        held = (torch.arange(len(self.columns), device=state.device) < old).repeat(len(state), 1)
        sides = torch.zeros(held.shape, dtype=torch.int64, device=state.device)
        if given is not None:
            held[:, old:], sides[:, old:] = given.held[:, self.written], given.sides[:, self.written]
        return Given(held, state[:, self.columns], sides)


def windows_of(spec: VelocitySpec, length: int | None, stride: int | None) -> list[Window]:
    """The windows of texts of `length` tokens; none is the model's own length, and one window."""
    size, room = spec.length, spec.length - spec.anchor
    if length is None or length == size:
        if stride is not None:
            raise UserError(f"a stride moves through texts longer than the model's {size} tokens: give a length too")
        return [Window(0, torch.arange(size), size)]
    if length < size:
        raise UserError(f"the model writes {size} tokens at once: a length of {length} is too short")
    step = max(1, room // 2) if stride is None else stride
    if not 1 <= step <= room:
        raise UserError(f"a stride is at least 1 and at most the {room} tokens that a window has, not {step}")
    made, end = [Window(0, torch.arange(size), size)], size
    while end < length:
        new = min(step, length - end)
        end += new
        columns = torch.cat([torch.arange(spec.anchor), torch.arange(end - room, end)])
        made.append(Window(len(made), columns, new))
    return made


def writing(windows: list[Window], given: Given | None) -> list[Window]:
    """Those windows that have something to write in any of the texts; at least the last."""
    if given is None:
        return windows
    return [each for each in windows if not bool(given.held[:, each.written].all())] or windows[-1:]


@dataclass
class Page:
    """The texts `state` [B, N] of a batch while they are written: noise at first, and what is given of them [B, N]."""

    windows: Sequence[Window]
    state: Tensor
    noises: list[RowNoise]
    given: Given | None

    @staticmethod
    def begin(
        windows: Sequence[Window],
        length: int,
        source: Source,
        numbers: Tensor,
        seed: int,
        given: Given | None,
        but: int | None = None,
    ) -> Page:
        """Texts of these numbers [B] before the first pass. The noise of a window depends on nothing but its number.

        No text begins with the token `but` as noise.
        """
        noises = [RowNoise(seed, numbers, STREAM + each.number if each.number else 0) for each in windows]
        state = torch.zeros(len(numbers), length, dtype=torch.int64, device=numbers.device)
        for window, noise in zip(windows, noises, strict=True):
            drawn = source.draw((len(numbers), len(window.columns)), noise, numbers.device, but)
            state[:, window.written] = drawn[:, len(window.columns) - window.new :]
        if given is not None:
            state = torch.where(given.held, given.tokens, state)
        return Page(windows, state, noises, given)

    def whole(self, window: Window, part: Tensor) -> Tensor:
        """The texts [B, N] with a window's state [B, L] in its place."""
        return self.state.index_copy(1, window.columns.to(part.device), part)

    def told(self, on_state: OnState | None, on_step: OnStep | None, passes: int) -> list[Told]:
        """The callbacks of each window, which tell of whole texts: time runs once over all W windows, as (w + t)/W.

        `passes` are those of a window.
        """
        return [
            (
                None if on_step is None else partial(self._step, index, on_step),
                None if on_state is None else partial(self._state, index, on_state, index * passes),
            )
            for index in range(len(self.windows))
        ]

    def _step(self, index: int, tell: OnStep, step: Step) -> None:
        window, count = self.windows[index], len(self.windows)
        before, after = (self.whole(window, part) for part in (step.before, step.after))
        tell(replace(step, t=(index + step.t) / count, h=step.h / count, before=before, after=after))

    def _state(self, index: int, tell: OnState, before: int, passes: int, t: float, x: Tensor) -> None:
        tell(before + passes, (index + t) / len(self.windows), self.whole(self.windows[index], x))
