"""The claims, each a function from what was measured to a verdict. «Beats» means a lower perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tsdfm.compass.statistics import wilson
from tsdfm.report.claims.evidence import Answer, Evidence, Part, Row, Verdict, figure, matched_ratio, ratio_of
from tsdfm.report.settings import ClaimsSettings
from tsdfm.report.unigram import SUFFIX

GUIDED = "sequence-to-token"
LATE = (32, 64)
UNJUDGED = "velocity_step"


@dataclass(frozen=True)
class Claim:
    """A claim: its letter, its words, and how it is answered."""

    letter: str
    words: str
    answer: Callable[[Evidence, ClaimsSettings], Verdict]
    judged: bool = True  # does a judge come into it?


def versus(found: Evidence, one: str, two: str, steps: Iterable[int]) -> list[Part]:
    """`one` beats `two` at T = 1, at each of these step counts."""
    parts = []
    for at in steps:
        a, b = found.row(one, at), found.row(two, at)
        ratio = ratio_of(a, b) if a is not None and b is not None else None
        if a is not None and b is not None and ratio is not None:
            parts.append(Part(f"/ {two}", ratio, ratio.below, f"{figure(a)} / {figure(b)}", at))
    return parts


def at_matched_entropy(found: Evidence, method: str, other: str | None = None) -> list[Part]:
    """`method` beats the control, or `other`, on the frontier, at each step count it was swept at."""
    parts = []
    for steps, row in found.swept(method).items():
        figures = row if other is None else (row.get("against") or {}).get(other)
        if figures is None and other is not None and row.get("control_method") == other:
            figures = row  # the other is the control itself
        ratio = matched_ratio(figures)
        if ratio is not None:
            value, where = ratio
            pooled = matched_ratio(figures, "bigram_")
            more = [where, f"by bigrams {pooled[0]}" if pooled else ""]
            name = f"/ {other or row.get('control_method') or 'control'}"
            parts.append(Part(name, value, value.below, ", ".join(word for word in more if word), steps))
        elif figures is not None and "ratio_at_own_entropy" in figures:
            parts.append(Part("", None, "open", "the curves share no entropy", steps))
    return parts


def few_steps(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student in few steps against its teacher in many."""
    one, two = found.row(asked.student, asked.student_steps), found.row("teacher", asked.teacher_steps)
    ratio = ratio_of(one, two) if one is not None and two is not None else None
    if one is None or two is None or ratio is None:
        return Verdict.of([])
    return Verdict.of([Part("", ratio, ratio.below, f"{figure(one)} / {figure(two)}")])


def every_step_count(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student against the blind ones, at T = 1."""
    steps = found.steps(asked.student)
    base = versus(found, asked.student, asked.base, steps)
    by_name = {name: versus(found, asked.student, name, steps) for name in asked.controls}
    missing = [name for name, parts in by_name.items() if not parts]
    if not base or len(missing) == len(by_name):
        lacking = ([] if base else [asked.base]) + missing
        return Verdict("open", tuple(base), f"not measured: {', '.join(lacking)}")
    parts = [*base, *(part for some in by_name.values() for part in some)]
    return Verdict.of(parts, f"not measured: {', '.join(missing)}" if missing else "")


def matched_paper(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The paper's setting on the frontier."""
    return Verdict.of(at_matched_entropy(found, asked.student))


def best_other(found: Evidence, asked: ClaimsSettings) -> str | None:
    """The other setting with the lowest mean log-ratio to the control at matched entropy."""
    means: dict[str, float] = {}
    for method in found.swept_methods():
        if method.startswith(asked.others) and method not in (asked.student, asked.random):
            logs = [math.log(p.ratio.value) for p in at_matched_entropy(found, method) if p.ratio is not None]
            if logs:
                means[method] = sum(logs) / len(logs)
    return min(means, key=lambda name: means[name]) if means else None


def matched_best(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The best other setting on the frontier."""
    best = best_other(found, asked)
    if best is None:
        return Verdict.of([])
    return Verdict.of(at_matched_entropy(found, best), f"{best}, chosen by these very figures")


def beats_bias(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The best setting, the paper's or another, against the control with a unigram bias."""
    biased = [name for name in found.swept_methods() if name.endswith(SUFFIX)]
    best = best_other(found, asked) or asked.student
    if not biased:
        return Verdict("open", (), "not measured: report frontier --unigram")
    return Verdict.of(at_matched_entropy(found, best, biased[0]), best)


def compass_adds(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student against the one with a random pick, at T = 1."""
    return Verdict.of(versus(found, asked.student, asked.random, found.steps(asked.student)))


def compass_adds_matched(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The same at matched entropy."""
    return Verdict.of(at_matched_entropy(found, asked.student, asked.random))


def guidance(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Guided texts against the temperature curve of the same student without guidance."""
    parts = []
    for steps in found.guided_steps():
        row = found.guided(steps, GUIDED)
        ratio = matched_ratio(row)
        if row is not None and ratio is not None:
            parts.append(Part("", ratio[0], ratio[0].below, figure(row), steps))
        elif row is not None and "ratio_at_own_entropy" in row:
            parts.append(Part("", None, "open", f"{figure(row)}, outside the curve", steps))
    return Verdict.of(parts, "" if parts else "not measured: report policy --temperatures")


def best_threshold(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Students with another τ are worse than the student at matched entropy."""
    parts = []
    for method in asked.thresholds:
        for part in at_matched_entropy(found, method, asked.student):
            ratio = part.ratio.inverse() if part.ratio is not None else None
            row = found.row(method, part.steps or 0)
            said = f"{method} at T = 1: {figure(row)}" if row is not None else ""
            parts.append(Part(f"/ {method}", ratio, ratio.below if ratio else "open", said, part.steps))
    return Verdict.of(parts)


def better_start(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Uniform: FS-DFM init beats DFM init; mask: the other way round."""
    pair = (asked.student, asked.from_teacher)
    one, two = pair if found.source != "mask" else pair[::-1]
    matched = at_matched_entropy(found, asked.from_teacher, asked.student)
    said = ", ".join(f"{p.steps} steps {p.ratio}" for p in matched if p.ratio is not None)
    remark = f"at matched entropy {asked.from_teacher} / {asked.student}: {said}" if said else ""
    return Verdict.of(versus(found, one, two, found.steps(one)), remark)


def both_phases(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Sequence-to-token against either phase alone, at 32 and 64 steps."""
    parts = []
    for steps in LATE:
        both = found.guided(steps, GUIDED)
        for phase in ("sequence", "token"):
            alone = found.guided(steps, phase)
            ratio = ratio_of(both, alone) if both is not None and alone is not None else None
            if both is not None and alone is not None and ratio is not None:
                more = f"{figure(both)} / {figure(alone)}"
                parts.append(Part(f"/ {phase}", ratio, ratio.below, more, steps))
    if len(parts) < 2 * len(LATE):
        return Verdict("no" if any(p.answer == "no" for p in parts) else "open", tuple(parts), "not all was measured")
    return Verdict.of(parts)


def enough_candidates(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """K = 8 is not clearly better than K = 5, and K = 2 is worse."""
    rows: dict[int, Row | None] = {k: found.with_k(k) for k in (2, 5, 8)}
    parts, five = list[Part](), rows[5]
    for k in (8, 2):
        row = rows[k]
        ratio = ratio_of(row, five) if row is not None and five is not None else None
        if row is None or five is None or ratio is None:
            continue
        answer: Answer
        if k == 8:  # nothing but a clear gain speaks against 5
            answer = "no" if ratio.below == "yes" else "yes" if ratio.interval is not None else "open"
        else:
            answer = ratio.inverse().below
        parts.append(Part(f"K = {k} / 5", ratio, answer, f"{figure(row)} / {figure(five)}"))
    return Verdict.of(parts) if len(parts) == 2 else Verdict("open", tuple(parts), "not measured: K = 2, 5 and 8")


def accurate(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The overall accuracy of the source's compass, with Wilson's interval over its judged pairs."""
    parts = list[Part]()
    for name, exam in found.exams.items():
        value = exam["accuracy"]["overall"]
        pairs = sum(count for strategy, count in exam["pairs"].items() if strategy != UNJUDGED)
        low, high = wilson(round(value * pairs), pairs)
        answer: Answer = "yes" if low >= asked.accuracy else "no" if high < asked.accuracy else "open"
        said = f"{name} {value:.1%} [{100 * low:.1f}, {100 * high:.1f}]"
        parts.append(Part(said, None, answer))
    return Verdict.of(parts[:1], "; ".join(part.what for part in parts[1:]))  # the first is the plain compass


CLAIMS = (
    Claim("a", "{student_steps} steps of the student beat {teacher_steps} of its teacher", few_steps),
    Claim("b", "TS-DFM beats FS-DFM and the equal-training controls at every step count at T = 1", every_step_count),
    Claim("c1", "at matched entropy too, in the paper's setting", matched_paper),
    Claim("c2", "at matched entropy, in the best other setting", matched_best),
    Claim("c3", "the best setting beats the control with a unigram bias", beats_bias),
    Claim("d1", "the compass adds to a random pick at T = 1", compass_adds),
    Claim("d2", "the compass adds to a random pick at matched entropy", compass_adds_matched),
    Claim("e", "guidance at generation beats the temperature curve", guidance),
    Claim("f", "τ = 0.2 is the best trade", best_threshold),
    Claim("g", "uniform prefers FS-DFM init, mask DFM init", better_start),
    Claim("h", "sequence-to-token beats either phase alone at 32 and 64 guided steps", both_phases),
    Claim("i", "K = 5 is enough", enough_candidates),
    Claim("j", "compass accuracy is at least {accuracy:.0%}", accurate, judged=False),
)
