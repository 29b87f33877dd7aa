"""What claims are made of: one method against another at T = 1 or at matched entropy, each comparison a part.

A comparison that is missing is a part too, an open one: a claim about every step count and every control is answered
yes only if all of them were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from tsdfm.report.claims.evidence import (
    NOT_MEASURED,
    Evidence,
    Part,
    Row,
    Trained,
    Verdict,
    figure,
    matched_ratio,
    missing,
    ratio_of,
)
from tsdfm.report.settings import ClaimsSettings


def compared(what: str, one: Row | None, two: Row | None, steps: int | None = None) -> Part:
    """Is the first perplexity below the second?"""
    ratio = ratio_of(one, two) if one is not None and two is not None else None
    if one is None or two is None or ratio is None:
        return Part(what, None, "open", missing(one, two), steps)
    return Part(what, ratio, ratio.below, f"{figure(one)} / {figure(two)}", steps)


def versus(found: Evidence, one: str, two: str, steps: Iterable[int]) -> list[Part]:
    """`one` beats `two` at T = 1, at each of these step counts."""
    parts = []
    for at in steps:
        mine = found.row(one, at)
        part = compared(f"/ {two}", mine, found.row(two, at), at)
        parts.append(part if mine is not None else replace(part, more=f"{NOT_MEASURED}: {one}"))
    return parts


def at_matched_entropy(found: Evidence, method: str, other: str, steps: Iterable[int] | None = None) -> list[Part]:
    """`method` beats `other` on the frontier, at each of these step counts; none: those that either was swept at."""
    mine = found.swept(method)
    wanted = found.swept_steps(method, other) if steps is None else steps
    return [matched_part(found, mine.get(at), other, at) for at in wanted]


def matched_part(found: Evidence, row: Row | None, other: str, steps: int) -> Part:
    """One step count of the frontier."""
    what, figures = f"/ {other}", figures_against(row, other)
    ratio = matched_ratio(figures)
    if ratio is not None:
        pooled = matched_ratio(figures, "bigram_")
        more = [ratio[1], f"by bigrams {pooled[0]}" if pooled else ""]
        return Part(what, ratio[0], ratio[0].below, ", ".join(word for word in more if word), steps)
    if figures is not None and "ratio_at_own_entropy" in figures:
        return Part(what, None, "open", "the curves share no entropy", steps)
    if row is not None and "against" not in row and other in found.swept_methods():
        row = {**row, "old": "frontier"}  # both were swept, and older versions compared with the control alone
    return Part(what, None, "open", missing(row) if other in found.swept_methods() else NOT_MEASURED, steps)


def figures_against(row: Row | None, other: str) -> Row | None:
    """A frontier row's ratios to a method: its own if that was the control, else those under `against`."""
    if row is None or row.get("control_method") == other:
        return row
    found: Row | None = (row.get("against") or {}).get(other)
    return found


def control_of(found: Evidence, asked: ClaimsSettings, method: str) -> tuple[Trained | None, str]:
    """The control that learned by a method's own divergence and average, and what they are, in words.

    A control is a blind student that went on from another one, or has a name of `--controls`. Of several, one trained
    for as many steps as the method comes first, then the order of `--controls`.
    """
    own = found.trained_as(method)
    if own is None:
        return None, "its run is not among those given"
    controls = [one for one in found.trained if one.blind and (one.went_on or one.method in asked.controls)]
    same = [one for one in controls if (one.divergence, one.average) == (own.divergence, own.average)]
    names = list(asked.controls)

    def rank(one: Trained) -> tuple[bool, int]:
        return one.steps != own.steps, names.index(one.method) if one.method in names else len(names)

    return min(same, key=rank, default=None), f"{own.divergence} KL, average of {own.average}"


def best_against_control(found: Evidence, asked: ClaimsSettings, methods: Iterable[str], suffix: str = "") -> Verdict:
    """The method with the lowest mean log-ratio to its own control at matched entropy, by which it is chosen.

    Methods whose control was not measured are named, and turn a no into open: one of them might be better.
    """
    means, parts, words, unknown = dict[str, float](), dict[str, list[Part]](), dict[str, str](), list[str]()
    for method in methods:
        control, learned = control_of(found, asked, method)
        if control is None:
            unknown.append(f"{method} ({learned}{'' if found.trained_as(method) is None else ': no such control'})")
            continue
        name = f"{control.method} {suffix}".strip()
        parts[method] = at_matched_entropy(found, method, name)
        logs = [math.log(part.ratio.value) for part in parts[method] if part.ratio is not None]
        if logs:
            means[method], words[method] = sum(logs) / len(logs), f"{method} against {name} ({learned})"
        else:
            why = parts[method][0].more if parts[method] else missing()
            unknown.append(f"{method} against {name} ({learned}): {why}")
    left = f"open: {', '.join(unknown)}" if unknown else ""
    if not means:
        return Verdict.of([], left)
    best = min(means, key=lambda name: means[name])
    said = Verdict.of(parts[best], "; ".join(w for w in (f"{words[best]}, chosen by these very figures", left) if w))
    return Verdict("open", said.parts, said.remark) if said.answer == "no" and unknown else said
