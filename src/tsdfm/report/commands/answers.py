"""`tsdfm report answers`: how many problems a model solves with k answers, by steps, beside what chance gives.

The paper's table (pass@k on GSM8K) with two rows that never look at the question, and with a stricter measure beside
the number: the worked equations too. A few hundred numbers are most answers there are, so that many tries at random
solve many problems; only what is above those rows was reasoned. Intervals are over problems, and over runs where there
are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from tsdfm.errors import UserError
from tsdfm.judges.answers import by_commonest, by_histogram
from tsdfm.metrics.intervals import crossed_interval
from tsdfm.nn.velocity import check_rows
from tsdfm.report.desk import Desk
from tsdfm.report.problems import Marks, Problems, held_out_problems, mark, problems_in, training_numbers
from tsdfm.report.rows import Plain
from tsdfm.report.runs import RunSet, TrainedRun
from tsdfm.report.settings import AnswersSettings
from tsdfm.report.table import METHOD, ORIGIN, SOURCE, STEPS, Column, Quote, Table
from tsdfm.tokens.rows import TokenRows

HISTOGRAM, COMMONEST = "chance: training answers drawn", "chance: the commonest in turn"
Answered = tuple[list[TrainedRun], list[Marks]]
"""Runs, which differ by their seed alone, and what is right of their answers."""
Found = dict[tuple[str, str, int], Answered]
"""By source, the name of the row, and steps."""


def run(desk: Desk, settings: AnswersSettings) -> Table:
    """Make the tables."""
    models = [model for model in desk.runs.models if model.prompted]
    rows = TokenRows(desk.runs.tokens_or_refuse(), "valid")
    if not rows.prompted:
        raise UserError(f"{rows.folder} has no prompts, so no answers: make it by tokens --layout prompt")
    if not models:
        raise UserError(f"none of these runs is a model that learned answers: train one on {rows.folder}")
    for model in models:
        check_rows(model.spec, rows, model.name)
    if settings.file is None:
        problems = held_out_problems(rows, settings.problems)
    else:
        problems = problems_in(settings.file, rows, settings.prompt, settings.field, settings.problems)
    found = answered(desk, models, problems, settings)
    count = len(problems.prompts) + problems.too_long
    asked = f"{count:,} problem{'s' * (count > 1)}, {settings.n} answers each"
    long = f" ({problems.too_long:,} longer than a row)" if problems.too_long else ""
    table = desk.table(f"Problems solved with k answers (%): {asked}{long}", columns_of(settings, problems))
    table.rows = [told(desk, key, *found[key], settings) for key in found]
    table.rows += chance(problems, training_numbers(TokenRows(rows.folder, "train")), settings)
    table.rows += [] if problems.of_sums else quoted(desk.quote, settings)
    table.notes += notes(problems, settings, count, several=any(len(runs) > 1 for runs, _ in found.values()))
    table.about = {"samples": count * settings.n, "problems": count, "answers_a_problem": settings.n}
    differences(desk, found, settings)
    return table


def answered(desk: Desk, models: Sequence[TrainedRun], problems: Problems, settings: AnswersSettings) -> Found:
    """What is right of every run's answers at every step count; runs that differ by their seed alone together."""
    asked, found, names = problems.asked(settings.n), Found(), names_of(desk.runs, models)
    for model in models:
        for steps in settings.steps_of(model):
            marks = mark(problems, desk.cell(model, steps, prefixes=asked), settings.n)
            runs, others = found.setdefault((model.source, names[model], steps), ([], []))
            runs.append(model)
            others.append(marks)
            desk.say(f"{model.name}: {steps} steps, pass@1 {marks.passes(1).mean():.3f}")
    return found


def names_of(runs: RunSet, models: Sequence[TrainedRun]) -> dict[TrainedRun, str]:
    """What the row of each model is called: those that differ by their seed alone have one, which is the first's."""
    rows: dict[tuple[str, str, str], TrainedRun] = {}
    first = {model: rows.setdefault((model.source, model.called, model.recipe), model) for model in models}
    apart = replace(runs, models=tuple(rows.values()))
    return {model: apart.label(first[model]) for model in models}


def columns_of(settings: AnswersSettings, problems: Problems) -> list[Column]:
    """pass@k, the same with its equations, and in the world of sums what its judge says of them."""
    tries = [Column(f"shown@{k}", f"pass@{k}") for k in settings.k]
    strict = [Column(f"shown exact@{k}", f"exact@{k}") for k in dict.fromkeys((settings.k[0], settings.k[-1]))]
    more = [Column("shown holds", "equations hold"), Column("shown follows", "steps follow")]
    return [SOURCE, METHOD, ORIGIN, STEPS, *tries, *strict, *(more if problems.of_sums else [])]


def told(
    desk: Desk, key: tuple[str, str, int], runs: Sequence[TrainedRun], marks: Sequence[Marks], settings: AnswersSettings
) -> Plain:
    """The row of a method at one step count: the mean over its runs and problems."""
    source, method, steps = key
    shown: Plain = {}
    for k in settings.k:
        shown |= cells(f"@{k}", [one.passes(k) for one in marks])
        shown |= cells(f" exact@{k}", [one.passes(k, exact=True) for one in marks])
    for name in ("holds", "follows"):
        values = [getattr(one, name) for one in marks]
        shown |= cells(f" {name}", values) if values[0] is not None else {}
    several = f", {len(runs)} runs" if len(runs) > 1 else ""
    each = [{"run": one.name, "pass@1": float(m.passes(1).mean())} for one, m in zip(runs, marks, strict=True)]
    known = {"source": source, "method": f"{method}{several}", "steps": steps, "runs": each}
    return {**known, "origin": desk.about(runs[0])["origin"], **shown}


def cells(name: str, values: Sequence[np.ndarray]) -> Plain:
    """The mean over runs and problems [R][P], its interval, and both as a text in per cent: `pass@8`, `shown@8`, …"""
    found = crossed_interval(values)
    said, ends = f"{100 * found.value:.1f}", found.interval
    if ends is not None:
        said += f" ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})"
    word = f"pass{name}" if name.startswith("@") else name.strip()
    return {word: found.value, f"{word}_interval": ends, f"shown{name}": said}


def chance(problems: Problems, known: Sequence[Fraction], settings: AnswersSettings) -> list[Plain]:
    """The rows of guesses that ignore the question."""
    out = list[Plain]()
    for name, law in ((HISTOGRAM, by_histogram), (COMMONEST, by_commonest)):
        row: Plain = {"source": "", "method": name, "origin": ""}
        for k in settings.k:
            each = [*law(known, problems.numbers, k), *[0.0] * problems.too_long]
            row |= cells(f"@{k}", [np.array(each)])
        out.append(row)
    return out


def quoted(quote: Quote, settings: AnswersSettings) -> list[Plain]:
    """The paper's rows, at the k that both have."""
    rows = quote.rows() if {8, 16, 32} & {*settings.k} else []
    for row in rows:
        for k in (8, 16, 32):
            figure = row.pop(f"pass@{k}")
            row |= {f"pass@{k}": figure / 100, f"shown@{k}": f"{figure:.2f}"} if k in settings.k else {}
    return rows


def notes(problems: Problems, settings: AnswersSettings, count: int, *, several: bool) -> list[str]:
    """What the columns mean."""
    judged = "the world's own judge" if problems.of_sums else "the number after the last ####, or the last one"
    said = [
        f"{count:,} problems, {settings.n} answers each; pass@k is unbiased, 95 % intervals are over problems"
        f"{' and runs' * several}; an answer is right by {judged}",
        "exact@k: the answer is right, and its worked equations are those of the held-out answer, in order",
        "chance rows never see the question: k draws from the training answers, or the k commonest of them in turn",
    ]
    if problems.too_long:
        said.append(f"{problems.too_long:,} problems are longer than a row, and count as unsolved")
    return said


def differences(desk: Desk, found: Found, settings: AnswersSettings) -> None:
    """A second table: one method against others, problem by problem, at each of its step counts."""
    tries = [Column(f"shown@{k}", f"pass@{k}") for k in settings.k]
    columns = [SOURCE, STEPS, METHOD, Column("against", "against", "left"), *tries]
    table = Table("answers-differences", "Problems solved with k answers, the difference (%)", columns)
    for source, method, steps in named(found, settings.of):
        for other, at in rivals(found, source, method, steps, settings):
            row: Plain = {"source": source, "steps": steps, "method": method, "against": f"{other}, {at} steps"}
            for k in settings.k:
                row |= cells(f"@{k}", gaps(found[source, method, steps], found[source, other, at], k))
            table.rows.append(row)
    table.notes.append("paired: the same problems, so that intervals are of the difference itself")
    if table.rows:
        desk.finish(table, sampled=False, beside=True)


def gaps(one: Answered, two: Answered, k: int) -> list[np.ndarray]:
    """The differences of pass@k [R][P]: run by run where both have runs of the same folders, else of their means."""
    each = [[marks.passes(k) for marks in every] for _, every in (one, two)]
    places = [[run.path.parent for run in runs] for runs, _ in (one, two)]
    pairs = zip(*each, strict=True) if places[0] == places[1] else [[np.mean(values, 0) for values in each]]
    return [mine - theirs for mine, theirs in pairs]


def named(found: Found, word: str) -> list[tuple[str, str, int]]:
    """The rows that a word means: one of that name, or all of that method."""
    return [key for key, (runs, _) in found.items() if word in (key[1], runs[0].called)]


def rivals(found: Found, source: str, method: str, steps: int, settings: AnswersSettings) -> list[tuple[str, int]]:
    """What a method is compared with: the named ones at the same steps, and a many-step one at its most."""
    out = list[tuple[str, int]]()
    keys = [key for word in settings.against for key in named(found, word) if key[0] == source]
    for name in dict.fromkeys(key[1] for key in keys):
        at = sorted({key[2] for key in keys if key[1] == name})
        out += [(name, each) for each in at if each == steps or (each == at[-1] and each > max(settings.steps))]
    return [each for each in out if each != (method, steps)]
