"""A trajectory: how texts came to be, step by step. One JSON file, written by any sampler, read by every viewer.

The states are stored as a start and the changes of each step. The texts of the tokens that occur are in the file, so
that a viewer needs neither the tokenizer nor a network; [MASK] and end-of-text have symbols of their own.

    {"format": 1, "method": "teacher", "source": "mask", "steps": 8, "nfe": 8, "seed": 0, "vocab": 564, "mask": 564,
     "end_of_text": 563, "pieces": {"12": "the"},
     "rows": [{"given": [0], "start": [564, …], "steps": [{"t": 0.0, "h": 0.125, "changes": [[3, 12], …],
                                                          "confidence": 0.41}]}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm.engine.manifest import read_json, write_json
from tsdfm.errors import UserError
from tsdfm.flow import Step
from tsdfm.tokens.tokenizer import Tokenizer

FORMAT = 1


@dataclass(frozen=True)
class Change:
    """One step of one text: its time and size, the tokens that changed, and how sure the model was."""

    t: float
    h: float
    changes: tuple[tuple[int, int], ...]
    confidence: float


@dataclass(frozen=True)
class Row:
    """One text's way: its first state, the positions that were given, and its steps."""

    start: tuple[int, ...]
    given: tuple[int, ...]
    steps: tuple[Change, ...]

    def states(self) -> Iterator[tuple[tuple[int, ...], frozenset[int]]]:
        """Every state in turn, with the positions that have just changed (none for the first)."""
        now = list(self.start)
        yield tuple(now), frozenset()
        for step in self.steps:
            for position, token in step.changes:
                now[position] = token
            yield tuple(now), frozenset(position for position, _ in step.changes)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The ways of several texts made together."""

    method: str
    source: str
    steps: int
    nfe: int
    seed: int
    vocab: int
    mask: int | None
    end_of_text: int
    pieces: dict[int, str]
    rows: tuple[Row, ...]

    def save(self, path: Path) -> Path:
        """Write the file in one atomic step."""
        rows = [
            {
                "given": row.given,
                "start": row.start,
                "steps": [
                    {"t": s.t, "h": s.h, "changes": s.changes, "confidence": round(s.confidence, 4)} for s in row.steps
                ],
            }
            for row in self.rows
        ]
        head = {name: getattr(self, name) for name in HEAD}
        return write_json(path, {"format": FORMAT, **head, "pieces": self.pieces, "rows": rows})

    @staticmethod
    def load(path: Path) -> Trajectory:
        """Read a file that `save` wrote."""
        plain = read_json(path)
        if plain.get("format") != FORMAT:
            raise UserError(
                f"{path} is no trajectory this version reads: make it with `tsdfm sample --save-trajectory`"
            )
        try:
            return Trajectory(
                **{name: plain[name] for name in HEAD},
                pieces={int(token): text for token, text in plain["pieces"].items()},
                rows=tuple(_row(row) for row in plain["rows"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{path} is damaged ({problem!r}): make it again") from None


HEAD = ("method", "source", "steps", "nfe", "seed", "vocab", "mask", "end_of_text")


def _row(plain: dict[str, Any]) -> Row:
    steps = (
        Change(s["t"], s["h"], tuple((int(p), int(token)) for p, token in s["changes"]), s["confidence"])
        for s in plain["steps"]
    )
    row = Row(tuple(map(int, plain["start"])), tuple(map(int, plain["given"])), tuple(steps))
    places = {*row.given, *(place for step in row.steps for place, _ in step.changes)}
    if places and not 0 <= min(places) <= max(places) < len(row.start):
        raise ValueError(f"a position outside the {len(row.start)} of the row")
    return row


@dataclass
class Recorder:
    """An `on_step` callback that keeps the states of each step on the CPU."""

    start: Tensor | None = None
    seen: list[tuple[float, float, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        if self.start is None:
            self.start = step.before.cpu()
        sure = step.logits.float().softmax(-1).amax(-1).mean(-1)  # [B]: the mean of the largest probabilities
        self.seen.append((step.t, step.h, step.before.cpu(), step.after.cpu(), sure.cpu()))

    def rows(self, given: Tensor | None) -> list[Row]:
        """What was seen, text by text."""
        if self.start is None:
            return []
        out = []
        for i in range(len(self.start)):
            steps = tuple(
                Change(t, h, _changes(before[i], after[i]), float(sure[i])) for t, h, before, after, sure in self.seen
            )
            held = () if given is None else tuple(given.nonzero().flatten().tolist())
            out.append(Row(tuple(self.start[i].tolist()), held, steps))
        return out


def _changes(before: Tensor, after: Tensor) -> tuple[tuple[int, int], ...]:
    moved = (before != after).nonzero().flatten()
    return tuple(zip(moved.tolist(), after[moved].tolist(), strict=True))


def pieces_of(rows: list[Row], tokenizer: Tokenizer) -> dict[int, str]:
    """The text of each token that occurs."""
    seen = {token for row in rows for token in row.start}
    seen |= {token for row in rows for step in row.steps for _, token in step.changes}
    return {token: tokenizer.decode([token]) for token in sorted(seen) if token < tokenizer.vocab_size}
