"""A trajectory: how texts came to be, step by step. One JSON file, written by any sampler, read by every viewer.

The states are stored as a start and the changes of each step. The texts of the tokens that occur are in the file, so
that a viewer needs neither the tokenizer nor a network; [MASK] and end-of-text have symbols of their own.

    {"format": 1, "method": "teacher", "source": "mask", "steps": 8, "nfe": 8, "seed": 0, "vocab": 564, "mask": 564,
     "end_of_text": 563, "guide": null, "compass": "9f0c…", "pieces": {"12": "the"},
     "rows": [{"given": [0], "start": [564, …], "energy": 3.1,
               "steps": [{"t": 0.0, "h": 0.125, "changes": [[3, 12], …], "replaced": [], "confidence": 0.41,
                          "energy": 2.7}]}]}

`energy` (in a row, of its first state; in a step, of the state after it), `compass` and `guide` are there only if a
compass scored the states or a policy guided them. `replaced` repeats, for readers that do not replay the states, which
changes hit a token that had been written before; files without it are read all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import Step
from tsdfm.store.files import read_json, write_json
from tsdfm.store.schema import Count, checked
from tsdfm.tokens.tokenizer import Tokenizer

FORMAT = 1
APART = 1e-5  # of time, between states that would be seen at once


@dataclass(frozen=True)
class Change:
    """One step of one text: its time and size, the tokens that changed, how sure the model was, the energy after."""

    t: float
    h: float
    changes: tuple[tuple[int, int], ...]
    confidence: float
    energy: float | None = None


@dataclass(frozen=True)
class State:
    """A text at one moment: what has just been written where noise was, what was rewritten, and what is noise still."""

    time: float
    tokens: tuple[int, ...]
    new: frozenset[int]
    replaced: frozenset[int]
    noise: frozenset[int]
    confidence: float | None
    energy: float | None


@dataclass(frozen=True)
class Row:
    """One text's way: its first state, the positions that were given, and its steps."""

    start: tuple[int, ...]
    given: tuple[int, ...]
    steps: tuple[Change, ...]
    energy: float | None = None

    def states(self) -> Iterator[tuple[tuple[int, ...], frozenset[int]]]:
        """Every state in turn, with the positions that have just changed (none for the first)."""
        now = list(self.start)
        yield tuple(now), frozenset()
        for step in self.steps:
            for position, token in step.changes:
                now[position] = token
            yield tuple(now), frozenset(position for position, _ in step.changes)

    def replay(self, mask: int | None = None) -> Iterator[State]:
        """Every state with its marks. A change is new where the start's noise (or a mask) was, and else a replacement.

        A token that becomes [MASK] again counts as replaced, and its place as noise. Times rise: a step that ends where
        the one before it did, such as a revision of the finished text, is shown `APART` later.
        """
        time, noise = 0.0, set(range(len(self.start))) - set(self.given)
        yield State(0.0, self.start, frozenset(), frozenset(), frozenset(noise), None, self.energy)
        for (tokens, changed), step in zip(list(self.states())[1:], self.steps, strict=True):
            erased = {place for place in changed if mask is not None and tokens[place] == mask}
            new = (changed & noise) - erased
            noise = (noise - changed) | erased
            marks = frozenset(new), frozenset(changed - new), frozenset(noise)
            end = step.t + step.h
            time = end if end > time else time + APART
            yield State(time, tokens, *marks, step.confidence, step.energy)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The ways of several texts made together."""

    method: str
    source: str
    steps: int
    nfe: float
    seed: int
    vocab: int
    mask: int | None
    end_of_text: int
    pieces: dict[int, str]
    rows: tuple[Row, ...]
    guide: str | None = None  # the policy that navigated every step
    compass: str | None = None  # the hash of the weights that gave the energies

    def save(self, path: str | Path) -> Path:
        """Write the file in one atomic step."""
        head = {name: getattr(self, name) for name in HEAD}
        head |= {name: value for name in MAY if (value := getattr(self, name)) is not None}
        rows = [_plain(row, self.mask) for row in self.rows]
        return write_json(path, {"format": FORMAT, **head, "pieces": self.pieces, "rows": rows})

    @staticmethod
    def load(path: str | Path) -> Trajectory:
        """Read a file that `save` wrote."""
        make = "make it with `tsdfm sample --save-trajectory`"
        found = read_json(path, f"a trajectory is a JSON file; {make}")
        if found.get("format") != FORMAT:
            raise UserError(f"{path} is no trajectory this version reads: {make}")
        plain = checked(found, TrajectoryFile, path)
        try:
            made = Trajectory(
                **{name: found[name] for name in HEAD},
                guide=plain.get("guide"),
                compass=plain.get("compass"),
                pieces={int(token): text for token, text in plain["pieces"].items()},
                rows=tuple(_row(row) for row in plain["rows"]),
            )
            if any(len(row.steps) != made.steps for row in made.rows):
                raise ValueError(f"a row has not the {made.steps} steps of the others")
            return made
        except ValueError as problem:
            raise UserError(f"{path} is damaged ({problem}): make it again") from None


Number = int | float


class StepFile(TypedDict):
    """A step of a row."""

    t: Number
    h: Number
    changes: list[tuple[Count, Count]]
    confidence: Number
    energy: NotRequired[Number | None]


class RowFile(TypedDict):
    """One text's way."""

    given: list[Count]
    start: list[Count]
    steps: list[StepFile]
    energy: NotRequired[Number | None]


class TrajectoryFile(TypedDict):
    """The whole file."""

    method: str
    source: str
    steps: Count
    nfe: Number
    seed: int
    vocab: Count
    mask: Count | None
    end_of_text: Count
    pieces: dict[str, str]
    rows: list[RowFile]
    guide: NotRequired[str | None]
    compass: NotRequired[str | None]


HEAD = ("method", "source", "steps", "nfe", "seed", "vocab", "mask", "end_of_text")
MAY = ("guide", "compass")


def _plain(row: Row, mask: int | None) -> dict[str, Any]:
    """A row as the file has it."""
    steps = []
    for step, state in zip(row.steps, list(row.replay(mask))[1:], strict=True):
        plain = {"t": step.t, "h": step.h, "changes": step.changes, "replaced": sorted(state.replaced)}
        steps.append({**plain, "confidence": round(step.confidence, 4), **_energy(step.energy)})
    return {"given": row.given, "start": row.start, **_energy(row.energy), "steps": steps}


def _energy(value: float | None) -> dict[str, float]:
    return {} if value is None else {"energy": round(value, 4)}


def _row(plain: RowFile) -> Row:
    steps = (
        Change(s["t"], s["h"], tuple((p, token) for p, token in s["changes"]), s["confidence"], s.get("energy"))
        for s in plain["steps"]
    )
    row = Row(tuple(plain["start"]), tuple(plain["given"]), tuple(steps), plain.get("energy"))
    places = {*row.given, *(place for step in row.steps for place, _ in step.changes)}
    if places and not 0 <= min(places) <= max(places) < len(row.start):
        raise ValueError(f"a position outside the {len(row.start)} of the row")
    return row


@dataclass
class Recorder:
    """An `on_step` callback that keeps the states of each step on the CPU, and their energies [B] if it can."""

    energy: Callable[[Tensor], Tensor] | None = None
    start: Tensor | None = None
    first: list[float] | None = None
    seen: list[tuple[float, float, Tensor, Tensor, Tensor, list[float] | None]] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        if self.start is None:
            self.start, self.first = step.before.cpu(), self._energies(step.before)
        sure = step.logits.float().softmax(-1).amax(-1).mean(-1)  # [B]: the mean of the largest probabilities
        after = step.after.cpu()
        self.seen.append((step.t, step.h, step.before.cpu(), after, sure.cpu(), self._energies(step.after)))

    def _energies(self, states: Tensor) -> list[float] | None:
        if self.energy is None:
            return None
        found: list[float] = self.energy(states).double().tolist()
        return found

    def rows(self, given: Tensor | None) -> list[Row]:
        """What was seen, text by text; `given` [B, L] are the positions that were."""
        if self.start is None:
            return []
        out = []
        for i in range(len(self.start)):
            steps = tuple(
                Change(t, h, _changes(before[i], after[i]), float(sure[i]), energy[i] if energy else None)
                for t, h, before, after, sure, energy in self.seen
            )
            held = () if given is None else tuple(given[i].nonzero().flatten().tolist())
            out.append(Row(tuple(self.start[i].tolist()), held, steps, self.first[i] if self.first else None))
        return out


def even(rows: list[Row]) -> list[Row]:
    """Rows with as many steps as the longest: batches may end early, and texts that are finished stay as they are."""
    most = max((row.steps for row in rows), key=len)
    out = []
    for row in rows:
        last = row.steps[-1]
        rest = (replace(step, changes=(), confidence=last.confidence, energy=last.energy) for step in most)
        out.append(replace(row, steps=(*row.steps, *list(rest)[len(row.steps) :])))
    return out


def _changes(before: Tensor, after: Tensor) -> tuple[tuple[int, int], ...]:
    moved = (before != after).nonzero().flatten()
    return tuple(zip(moved.tolist(), after[moved].tolist(), strict=True))


def pieces_of(rows: list[Row], tokenizer: Tokenizer) -> dict[int, str]:
    """The text of each token that occurs."""
    seen = {token for row in rows for token in row.start}
    seen |= {token for row in rows for step in row.steps for _, token in step.changes}
    return {token: tokenizer.decode([token]) for token in sorted(seen) if token < tokenizer.vocab_size}
