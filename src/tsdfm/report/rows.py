"""The record of a measurement: one model at one step count, with what every judge says of its texts.

A `Row` is what `metrics.json` holds and what tables and figures are made of. In JSON an estimate `x` is two fields, `x`
and `x_interval`, and the figures of the first judge (of the story world, where there is one) stand in the row itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from tsdfm.errors import UserError
from tsdfm.metrics.intervals import Estimate
from tsdfm.metrics.ngrams import TextStats
from tsdfm.metrics.perplexity import JudgeScores
from tsdfm.store.files import MEND, read_any_json
from tsdfm.store.schema import Count, Wrong, check

REAL = "held-out text"
COLLAPSE = 1.0
"""Bits of entropy under held-out text from which on a row counts as collapsed."""

Plain = dict[str, Any]
"""What JSON holds."""
Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class StoryScores:
    """What the story world says of whole stories. With prefixes it has no perplexity: that is the continuation's."""

    valid: Estimate
    ppl: Estimate | None = None
    nll: float | None = None
    nll_valid: float | None = None
    broken_rules: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one set of texts, with all that is needed to make them again. Held-out text has no steps."""

    method: str
    source: str | None = None
    steps: Count | None = None
    nfe: float | None = None
    compass_calls: float | None = None
    guide: str | None = None
    samples: Count | None = None
    text: TextStats = field(default_factory=TextStats)
    judges: Mapping[str, JudgeScores] = field(default_factory=dict)
    story: StoryScores | None = None
    length: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    jump: str | None = None
    draw: str | None = None
    precision: str | None = None
    seed: int | None = None
    run: str | None = None
    checkpoint: str | None = None
    hardware: str | None = None
    tokens_per_s: float | None = None
    texts: tuple[str, ...] = ()
    collapsed: bool = False

    @property
    def judge(self) -> str | None:
        """The judge whose figures stand in the row: the first."""
        return next(iter(self.judges), None)

    @property
    def scores(self) -> JudgeScores:
        """The first judge's figures."""
        return next(iter(self.judges.values()), JudgeScores())

    @property
    def ppl(self) -> Estimate | None:
        return self.story.ppl if self.story and self.story.ppl else self.scores.ppl

    @property
    def nll(self) -> float | None:
        """Mean nats of a text."""
        own = self.story.nll if self.story else None
        return self.scores.nll.value if own is None and self.scores.nll else own

    @property
    def valid(self) -> Estimate | None:
        return self.story.valid if self.story else None

    @property
    def entropy(self) -> float:
        """Bits of the token histogram."""
        return self.text.entropy_bits.value if self.text.entropy_bits else math.nan

    @property
    def label(self) -> str:
        """The method, and the policy that guided it."""
        return f"{self.method} + {self.guide}" if self.guide else self.method

    @property
    def marks(self) -> list[str]:
        """The columns that are marked where it has collapsed."""
        return ["entropy_bits", "ppl"] if self.collapsed else []

    def under(self, judge: str) -> Self:
        """The row with another judge's figures in it."""
        story = replace(self.story, ppl=None, nll=None) if self.story else None
        return replace(self, judges={judge: self.judges[judge]}, story=story)

    def against(self, target: Self | None) -> Self:
        """The row marked as collapsed if its entropy is more than one bit under held-out text's."""
        return replace(self, collapsed=target is not None and self.entropy < target.entropy - COLLAPSE)

    def plain(self) -> Plain:
        """For JSON."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in RECORDS}
        out: Plain = {name: value for name, value in known.items() if value is not None or name not in OPTIONAL}
        if self.judges:
            out |= {"judge": self.judge, **plain(self.scores)}
        if self.story is not None:
            out |= plain(self.story) | ({"nll_valid": self.story.nll_valid} if self.story.ppl else {})
        out |= plain(self.text)
        if self.text.entropy_bits is not None:
            out["entropy_interval"] = out.get("entropy_bits_interval")
        return out | {"texts": list(self.texts), "judges": {name: plain(one) for name, one in self.judges.items()}}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """A row from JSON, or `Wrong`. What is missing is not known."""
        check(str, found.get("method"), "method")
        check(dict[str, Plain] | None, found.get("judges"), "judges")
        for name, kind in get_type_hints(cls, include_extras=True).items():
            if name not in RECORDS and found.get(name) is not None:
                check(kind, found[name], name)
        flat = {"entropy_bits_interval": found.get("entropy_interval"), **found}
        judges = {name: record(JudgeScores, one) for name, one in (found.get("judges") or {}).items()}
        known: Plain = {f.name: found[f.name] for f in fields(cls) if found.get(f.name) is not None}
        known |= {"texts": tuple(found.get("texts") or ()), "text": record(TextStats, flat)}
        known["judges"] = judges or {str(found.get("judge") or ""): record(JudgeScores, flat)}
        return cls(**{**known, "story": record(StoryScores, flat) if estimate(flat, "valid") else None})


def rows_in(path: Path) -> list[Row]:
    """The rows of a `metrics.json`, told apart, or one clear line."""
    return told_apart(rows_of(read_any_json(path), path))


def told_apart(rows: Sequence[Row]) -> list[Row]:
    """The rows with their run after the method where several runs of a source are called so, as in other tables."""
    runs: dict[tuple[str | None, str], set[str | None]] = {}
    for row in rows:
        runs.setdefault((row.source, row.label), set()).add(row.run)
    several = {key for key, each in runs.items() if len(each) > 1}
    return [
        replace(row, method=f"{row.method} [{row.run}]") if row.run and (row.source, row.label) in several else row
        for row in rows
    ]


def rows_of(found: Any, path: Path) -> list[Row]:
    """Rows from the file at `path`."""
    try:
        check(list[Plain], found)
        return [Row.read(row) for row in found]
    except Wrong as problem:
        raise UserError(f"{path} is damaged ({problem}): {MEND}") from None


RECORDS = ("text", "judges", "story")
OPTIONAL = ("jump", "draw", "precision", "run")
"""Fields that are left out where they are not known; the others are then null."""


def plain(made: Any) -> Plain:
    """A record for JSON: an estimate `x` as `x` and `x_interval`. What is not known is left out, but for `ppl`."""
    out: Plain = {"ppl": None, "ppl_interval": None} if isinstance(made, JudgeScores) else {}
    for f in fields(made):
        value = getattr(made, f.name)
        if isinstance(value, Estimate):
            ends = value.interval
            out |= {f.name: value.value, **({f"{f.name}_interval": ends} if ends else {})}
        elif is_dataclass(value) or value is not None:
            out[f.name] = plain(value) if is_dataclass(value) else value
    return out


def record(cls: type[Kind], found: Mapping[str, Any]) -> Kind:
    """The record of JSON's fields, or `Wrong`; a number that is none is not known."""
    read: Plain = {}
    for name, kind in get_type_hints(cls).items():
        if "Estimate" in str(kind):
            read[name] = estimate(found, name)
        elif (value := finite_or_none(found.get(name))) is not None:
            check(kind, value, name)
            read[name] = value
    return cls(**{name: value for name, value in read.items() if value is not None})


def estimate(found: Mapping[str, Any], name: str) -> Estimate | None:
    """A number with its interval, or none."""
    value, ends = found.get(name), found.get(f"{name}_interval")
    if not finite(value):
        return None
    known = isinstance(ends, (list, tuple)) and len(ends) == 2 and all(map(finite, ends))
    return Estimate(float(value), *(ends if known else ()))  # type: ignore[arg-type, misc]


def finite_or_none(value: Any) -> Any:
    """A value of JSON, which has no word for NaN and infinities: those are none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finite(value: object) -> bool:
    """Is it a number that can be shown?"""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
