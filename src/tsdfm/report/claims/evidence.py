"""What was measured, as claims ask for it: rows by method and steps, and ratios with intervals.

The ratio of two perplexities that were each measured with an interval is taken as log-normal, with the intervals'
widths on the log scale as 2·1.96 standard errors:

    log(a/b) ± 1.96·√(s_a² + s_b²),      s = log(high/low) / 3.92

Texts of two methods are made from the same random numbers, which if anything makes the truth narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = Literal["yes", "no", "open"]
Row = Mapping[str, Any]
SPAN = 2 * 1.959964
NOT_MEASURED = "not measured"
OLD = "made by an older version: run `tsdfm report {}` again"


@dataclass(frozen=True)
class Ratio:
    """A ratio of perplexities with its 95 % interval, or without one."""

    value: float
    interval: tuple[float, float] | None

    @property
    def below(self) -> Answer:
        """Is it below 1? Open where the interval holds 1, or is missing."""
        if self.interval is None:
            return "open"
        low, high = self.interval
        return "yes" if high < 1 else "no" if low > 1 else "open"

    def inverse(self) -> Ratio:
        """The other way round."""
        ends = (1 / self.interval[1], 1 / self.interval[0]) if self.interval is not None else None
        return Ratio(1 / self.value, ends)

    def __str__(self) -> str:
        ends = "" if self.interval is None else f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"
        return f"{self.value:.2f}{ends}"


@dataclass(frozen=True)
class Part:
    """One comparison a claim rests on: what was compared, the ratio, and what it says of the claim."""

    what: str
    ratio: Ratio | None
    answer: Answer
    more: str = ""
    steps: int | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        ratio = self.ratio
        return {
            "what": self.what,
            "steps": self.steps,
            "ratio": ratio.value if ratio else None,
            "interval": list(ratio.interval) if ratio and ratio.interval else None,
            "answer": self.answer,
            "more": self.more,
        }

    def __str__(self) -> str:
        when = f"{self.steps} steps" if self.steps else ""
        words = [when, self.what, str(self.ratio) if self.ratio else "", f"({self.more})" if self.more else ""]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim, with what it rests on."""

    answer: Answer
    parts: tuple[Part, ...] = ()
    remark: str = ""

    @classmethod
    def of(cls, parts: Iterable[Part], remark: str = "") -> Verdict:
        """Yes if every part says so, no if any part says no, open otherwise or without a part."""
        found = tuple(parts)
        said = {part.answer for part in found}
        answer: Answer = "no" if "no" in said else "yes" if said == {"yes"} else "open"
        return cls(answer, found, remark or ("" if found else "not measured"))

    def __str__(self) -> str:
        return "; ".join([*(str(part) for part in self.parts), *([self.remark] if self.remark else [])])


@dataclass(frozen=True)
class Trained:
    """What a student's manifest says that decides which control belongs to it."""

    label: str  # what the tables call it
    method: str
    divergence: str
    average: str
    steps: int | None  # of training
    blind: bool  # trained without a compass or candidates
    went_on: bool  # from another student


@dataclass(frozen=True)
class Evidence:
    """All that was measured of one source, seen by one judge (`judge` none: by the first of each table)."""

    source: str
    judge: str | None
    metrics: Sequence[Row] = ()
    frontier: Sequence[Row] = ()
    policy: Sequence[Row] = ()
    candidates: Sequence[Row] = ()
    exams: Mapping[str, Row] = field(default_factory=dict)
    trained: Sequence[Trained] = ()

    def row(self, method: str, steps: int) -> Row | None:
        """A method at T = 1 without guidance, in `metrics.json`."""
        found = (row for row in self._warm(method) if row.get("steps") == steps)
        return self.seen(next(found, None), "measure")

    def steps(self, *methods: str) -> list[int]:
        """The step counts any of these methods was measured at, at T = 1 without guidance."""
        return sorted({row["steps"] for method in methods for row in self._warm(method)})

    def swept(self, method: str) -> dict[int, Row]:
        """A method's rows in `frontier.json`, by steps."""
        rows = {row["steps"]: row for row in self._here(self.frontier) if row.get("method") == method}
        seen = ((steps, self.seen(rows[steps], "frontier")) for steps in sorted(rows))
        return {steps: row for steps, row in seen if row is not None}

    def swept_steps(self, *methods: str) -> list[int]:
        """The step counts any of these methods was swept at."""
        return sorted({row["steps"] for row in self._here(self.frontier) if row.get("method") in methods})

    def swept_methods(self) -> list[str]:
        """Every method of `frontier.json`."""
        return list(dict.fromkeys(str(row["method"]) for row in self._here(self.frontier)))

    def guided(self, steps: int, policy: str) -> Row | None:
        """A row of `policy.json`."""
        found = (r for r in self._here(self.policy) if (r.get("steps"), r.get("policy")) == (steps, policy))
        return self.seen(next(found, None), "policy")

    def guided_steps(self) -> list[int]:
        """The step counts of `policy.json`."""
        return sorted({row["steps"] for row in self._here(self.policy)})

    def with_k(self, k: int) -> Row | None:
        """A row of `candidates.json`."""
        return self.seen(next((row for row in self._here(self.candidates) if row.get("k") == k), None), "candidates")

    def trained_as(self, label: str) -> Trained | None:
        """How the method a table calls so was trained."""
        return next((one for one in self.trained if label in (one.label, one.method)), None)

    def _here(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row.get("source") == self.source and not row.get("paper")]

    def _warm(self, method: str) -> list[Row]:
        rows = (row for row in self._here(self.metrics) if row.get("method") == method and not row.get("guide"))
        return [row for row in rows if row.get("temperature") in (None, 1.0)]

    def seen(self, row: Row | None, made_by: str) -> Row | None:
        """A row with the judge's figures in it; None if this judge did not read it.

        Rows of older versions have one judge's figures only, without `judges`: they stand for that judge, and for any
        other there is nothing but `old`, the command that would make the row again.
        """
        if row is None or self.judge is None:
            return row
        if "judges" not in row:
            return {**row, "old": made_by} if row.get("judge") == self.judge else {"old": made_by}
        found = (row["judges"] or {}).get(self.judge)
        return {**row, **found} if found is not None else None


def missing(*rows: Row | None) -> str:
    """Why there is no figure: not measured, or not kept by an older version."""
    old = (row["old"] for row in rows if row is not None and "old" in row)
    return OLD.format(verb) if (verb := next(old, None)) else NOT_MEASURED


def ratio_of(one: Row, two: Row) -> Ratio | None:
    """ppl(one) / ppl(two) at whatever temperature both were sampled; None where either has none."""
    a, b = one.get("ppl"), two.get("ppl")
    if not a or not b:
        return None
    ends = one.get("ppl_interval"), two.get("ppl_interval")
    if not all(end and end[0] > 0 for end in ends):
        return Ratio(a / b, None)
    spread = math.sqrt(sum((math.log(end[1] / end[0]) / SPAN) ** 2 for end in ends if end)) * SPAN / 2
    return Ratio(a / b, (a / b * math.exp(-spread), a / b * math.exp(spread)))


def matched_ratio(figures: Row | None, prefix: str = "") -> tuple[Ratio, str] | None:
    """The ratio at matched entropy, of a frontier's fields: at the method's own entropy, or else over the overlap."""
    for name, ends, where in (
        ("ratio_at_own_entropy", "ratio_at_own_interval", ""),
        ("ratio_over_overlap", "ratio_over_interval", "over shared entropies"),
    ):
        value = (figures or {}).get(f"{prefix}{name}")
        if value is not None:
            interval = (figures or {}).get(f"{prefix}{ends}")
            return Ratio(value, (interval[0], interval[1]) if interval else None), where
    return None


def figure(row: Row) -> str:
    """`56.1 at 7.20 bits`, with † where it has collapsed."""
    ppl = row.get("ppl")
    said = "no perplexity" if ppl is None else f"{ppl:.1f}"
    entropy = row.get("entropy_bits")
    at = "" if entropy is None else f" at {entropy:.2f} bits"
    return f"{said}{at}{'†' if row.get('collapsed') else ''}"
