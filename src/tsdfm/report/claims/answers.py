"""The claims, each a function from what was measured to a verdict. «Beats» means a lower perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tsdfm.compass.statistics import wilson
from tsdfm.report.claims.comparisons import at_matched_entropy, best_against_control, compared, versus
from tsdfm.report.claims.evidence import (
    NOT_MEASURED,
    Answer,
    Evidence,
    Part,
    Row,
    Verdict,
    figure,
    matched_ratio,
    missing,
)
from tsdfm.report.settings import ClaimsSettings
from tsdfm.report.unigram import SUFFIX

GUIDED = "sequence-to-token"
LATE = (32, 64)
UNJUDGED = ("velocity_step", "overall")  # of a compass's accuracies: what is not a judged strategy


@dataclass(frozen=True)
class Claim:
    """A claim: its letter, its words, and how it is answered."""

    letter: str
    words: str
    answer: Callable[[Evidence, ClaimsSettings], Verdict]
    judged: bool = True  # does a judge come into it?


def few_steps(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student in few steps against its teacher in many."""
    one, two = found.row(asked.student, asked.student_steps), found.row("teacher", asked.teacher_steps)
    part = compared("", one, two)
    if part.ratio is None:
        part = replace(part, what=f"{asked.student} in {asked.student_steps} steps / teacher in {asked.teacher_steps}")
    return Verdict.of([part])


def every_step_count(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student against the blind ones, at T = 1."""
    blind = (asked.base, *asked.controls)
    steps = found.steps(asked.student, *blind)
    return Verdict.of(part for name in blind for part in versus(found, asked.student, name, steps))


def matched_paper(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The paper's setting on the frontier: FS-DFM and the first control are needed, further ones count if measured."""
    needed, further = (asked.base, *asked.controls[:1]), asked.controls[1:]
    steps = found.swept_steps(asked.student, *needed)
    parts = [part for name in needed for part in at_matched_entropy(found, asked.student, name, steps)]
    for name in further:
        more = at_matched_entropy(found, asked.student, name, steps)
        parts += more if any(part.ratio is not None for part in more) else []
    return Verdict.of(parts)


def other_settings(found: Evidence, asked: ClaimsSettings) -> list[str]:
    """The swept students of other settings; one that shares the student's method is the paper's setting too."""
    known = [name for name in found.swept_methods() if name.startswith(asked.others)]
    return [name for name in known if name.split(" [")[0] not in (asked.student, asked.random)]


def matched_best(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The best other setting on the frontier, against the control of its own divergence and average."""
    return best_against_control(found, asked, other_settings(found, asked))


def beats_bias(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The best setting, the paper's or another, against its control with a unigram bias."""
    swept = found.swept_methods()
    if not any(name.endswith(SUFFIX) for name in swept):
        return Verdict("open", (), f"{NOT_MEASURED}: report frontier --unigram")
    papers = [asked.student] if asked.student in swept else []
    return best_against_control(found, asked, [*papers, *other_settings(found, asked)], SUFFIX)


def compass_adds(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The student against the one with a random pick, at T = 1."""
    return Verdict.of(versus(found, asked.student, asked.random, found.steps(asked.student, asked.random)))


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
        else:
            parts.append(Part("", None, "open", missing(row), steps))
    if all(part.more == NOT_MEASURED for part in parts):
        return Verdict("open", (), f"{NOT_MEASURED}: report policy --temperatures")
    return Verdict.of(parts)


def best_threshold(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Students with every other τ are worse than the student at matched entropy."""
    parts, steps = [], found.swept_steps(asked.student, *asked.thresholds)
    for method in asked.thresholds:
        for part in at_matched_entropy(found, method, asked.student, steps):
            if part.ratio is None:
                parts.append(replace(part, what=f"/ {method}"))
                continue
            ratio, row = part.ratio.inverse(), found.row(method, part.steps or 0)
            said = f"{method} at T = 1: {figure(row)}" if row is not None and "ppl" in row else ""
            parts.append(Part(f"/ {method}", ratio, ratio.below, said, part.steps))
    return Verdict.of(parts)


def better_start(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Uniform: FS-DFM init beats DFM init; mask: the other way round."""
    pair = (asked.student, asked.from_teacher)
    one, two = pair if found.source != "mask" else pair[::-1]
    matched = at_matched_entropy(found, asked.from_teacher, asked.student)
    said = ", ".join(f"{p.steps} steps {p.ratio}" for p in matched if p.ratio is not None)
    remark = f"at matched entropy {asked.from_teacher} / {asked.student}: {said}" if said else ""
    return Verdict.of(versus(found, one, two, found.steps(one, two)), remark)


def both_phases(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """Sequence-to-token against either phase alone, at 32 and 64 steps."""
    return Verdict.of(
        compared(f"/ {phase}", found.guided(steps, GUIDED), found.guided(steps, phase), steps)
        for steps in LATE
        for phase in ("sequence", "token")
    )


def enough_candidates(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """K = 8 is not clearly better than K = 5, and K = 2 is worse."""
    eight, two = (compared(f"K = {k} / 5", found.with_k(k), found.with_k(5)) for k in (8, 2))
    if eight.ratio is not None and eight.ratio.interval is not None:  # nothing but a clear gain speaks against 5
        eight = replace(eight, answer="no" if eight.answer == "yes" else "yes")
    if two.ratio is not None:
        two = replace(two, answer=two.ratio.inverse().below)
    return Verdict.of([eight, two])


def accurate(found: Evidence, asked: ClaimsSettings) -> Verdict:
    """The overall accuracy of the source's compass, the mean over its judged strategies."""
    parts = list[Part]()
    for name, exam in found.exams.items():
        known = shares(exam)
        if not known:
            parts.append(Part(name, None, "open", NOT_MEASURED))
            continue
        value, low, high = mean_share(known)
        answer: Answer = "yes" if low >= asked.accuracy else "no" if high < asked.accuracy else "open"
        parts.append(Part(f"{name} {value:.1%} [{100 * low:.1f}, {100 * high:.1f}]", None, answer))
    return Verdict.of(parts[:1], "; ".join(str(part) for part in parts[1:]))  # the first is the plain compass


def shares(exam: Row) -> list[tuple[float, int]]:
    """The accuracy and the number of pairs of each judged strategy; none where an examination lacks them."""
    right, pairs = exam.get("accuracy"), exam.get("pairs")
    if not isinstance(right, dict) or not isinstance(pairs, dict):
        return []
    judged = [name for name in right if name not in UNJUDGED]
    if any(right[name] is None or name not in pairs for name in judged):
        return []
    return [(float(right[name]), int(pairs[name])) for name in judged if pairs[name]]


def mean_share(known: list[tuple[float, int]]) -> tuple[float, float, float]:
    """The mean of independent shares p_s with a 95 % interval: Wilson's half-widths, added as variances are.

        low = p̄ − √(Σ (p_s − l_s)²) / S,    high = p̄ + √(Σ (u_s − p_s)²) / S

    with [l_s, u_s] Wilson's interval of strategy s. For one strategy that is Wilson's itself.
    """
    mean = sum(share for share, _ in known) / len(known)
    ends = [(share, *wilson(round(share * count), count)) for share, count in known]
    down = math.sqrt(sum((share - low) ** 2 for share, low, _ in ends)) / len(known)
    up = math.sqrt(sum((high - share) ** 2 for share, _, high in ends)) / len(known)
    return mean, mean - down, mean + up


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
