"""What a number may be: every setting that is one has a range, which its help shows and which is checked in one place.

    lr: float = option(3e-4, "peak learning rate", above=0)
    floor: float = option(0.1, "where the cosine ends", low=0, high=1)

`low` and `high` belong to the range, `above` and `below` do not. Whatever the range, a number is finite, and a whole
number fits into 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

WIDEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval whose ends belong to it (`low`, `high`) or do not (`above`, `below`)."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def bounded(self) -> bool:
        """Does it say anything beyond what holds for every number?"""
        return any(end is not None for end in (self.low, self.high, self.above, self.below))

    @property
    def told(self) -> str:
        """The words for a setting's help; none where any number of 64 bits will do."""
        return "" if self.high == WIDEST else str(self)

    def __contains__(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """In words: `at least 1`, `from 0 to 1`, `at least 0 and below 1`."""
        if self.low is not None and self.low == self.high:
            return _number(self.low)
        if self.low is not None and self.high is not None:
            return f"from {_number(self.low)} to {_number(self.high)}"
        ends = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        return " and ".join(f"{word} {_number(end)}" for word, end in ends.items() if end is not None)


ANY = Range()
SEED: dict[str, Any] = {"low": -WIDEST, "high": WIDEST}
"""The range of a seed, for `option(…, **SEED)`: any whole number of 64 bits."""


def wrong(kind: type, value: Any, held_to: Range) -> str | None:
    """What is wrong with `value` as a number of `kind` (int or float), in words that follow the setting's name."""
    number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if not number:
        return f"takes {'a whole number' if kind is int else 'a number'}, not {shown(value)}"
    if value not in held_to:
        return f"must be {held_to}, not {shown(value)}"
    if not math.isfinite(value) if kind is float else not -WIDEST <= value <= WIDEST:
        return f"must be {'a finite number' if kind is float else 'a number of 64 bits'}, not {shown(value)}"
    return None


def shown(value: Any, most: int = 80) -> str:
    """A value as a message shows it: its `repr`, cut short where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; lists in lists in lists
        return f"a very large {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _number(end: float) -> str:
    """`1`, `0.05`, `2^20`, `2^63 − 1`."""
    if end == WIDEST or end == -WIDEST:
        return "2^63 − 1" if end > 0 else "−2^63 + 1"
    if end >= 1024 and math.log2(end).is_integer():
        return f"2^{math.log2(end):.0f}"
    return f"{end:g}" if abs(end) < 1e6 else f"{end:,.0f}"
