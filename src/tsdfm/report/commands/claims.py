"""`tsdfm report claims`: the paper's claims, answered from what other commands have written. Nothing is sampled.

A claim is data: its sentence, the table that decides it, and which figures are compared. Read are `metrics.json`,
`frontier.json`, `policy.json`, `candidates.json` (from --out, else the runs' own report folder) and the validations of
compasses. A ratio of perplexities below 1 with its whole 95 % interval is a yes, above 1 a no, anything else is open;
a claim is a yes if all its parts are, a no if any is, and open where a method it names was not measured.

Two perplexities at T = 1 are taken as independent and log-normal, with s = log(high/low) / 3.92 of each interval:

    log(a/b) ± 1.96·√(s_a² + s_b²)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tsdfm.errors import UserError
from tsdfm.metrics.intervals import Estimate, wilson
from tsdfm.report.desk import Desk
from tsdfm.report.page.gather import read_any
from tsdfm.report.rows import Plain, estimate
from tsdfm.report.settings import ClaimsSettings
from tsdfm.report.table import Column, Table

Expected = Literal["below", "above", "not below"]
KEYS = {"metrics": "method", "frontier": "method", "policy": "policy", "candidates": "k"}
"""The tables, and what names a row of theirs."""
GUIDED, UNKNOWN = "sequence-to-token", Estimate(math.nan)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: in `table`, the perplexity of `one` over each of `others` is `expected` 1.

    `{student}` and the like are settings of the command. Rows are compared at equal steps, or at those behind an @. In
    the frontier ratios are those at matched entropy; without `others`, to the temperature curve of the same student.
    On the mask source `swap` turns one and others round. Accuracy is no ratio: it is that of the source's compass.
    """

    letter: str
    words: str
    table: str
    one: str = ""
    others: tuple[str, ...] = ()
    expected: Expected = "below"
    swap: bool = False


CLAIMS = (
    Claim("a", "{student_steps} steps of the student beat {teacher_steps} of its teacher", "metrics",
          "{student}@{student_steps}", ("teacher@{teacher_steps}",)),
    Claim("b", "TS-DFM beats FS-DFM and the equal-training control at every step count at T = 1", "metrics",
          "{student}", ("{base}", "{control}")),
    Claim("c1", "at matched entropy too", "frontier", "{student}", ("{base}", "{control}")),
    Claim("c2", "it beats the control with a unigram bias", "frontier", "{student}", ("{control} + unigram bias",)),
    Claim("d1", "the compass adds to a random pick at T = 1", "metrics", "{student}", ("{random}",)),
    Claim("d2", "the compass adds to a random pick at matched entropy", "frontier", "{student}", ("{random}",)),
    Claim("e", "guidance at generation beats the temperature curve", "policy", GUIDED),
    Claim("f", "τ = 0.2 is the best trade", "frontier", "{thresholds}", ("{student}",), "above"),
    Claim("g", "uniform prefers FS-DFM init, mask DFM init", "metrics", "{student}", ("{from_teacher}",), swap=True),
    Claim("h", "sequence-to-token beats either phase alone at 32 and 64 guided steps", "policy", f"{GUIDED}@32,64",
          ("sequence", "token")),
    Claim("i1", "K = 2 is worse than K = 5", "candidates", "2", ("5",), "above"),
    Claim("i2", "K = 8 is not clearly better than K = 5", "candidates", "8", ("5",), "not below"),
    Claim("j", "compass accuracy is at least {accuracy:.0%}", "compass"),
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One comparison: what was compared, the figure (NaN where it was not measured), and what is expected of it."""

    what: str
    found: Estimate = UNKNOWN
    expected: Expected = "below"
    bound: float = 1.0

    @property
    def answer(self) -> str:
        below, above = self.found.high < self.bound, self.found.low > self.bound
        if self.expected == "not below":
            return "no" if below else "yes" if math.isfinite(self.found.low) else "open"
        good, bad = (below, above) if self.expected == "below" else (above, below)
        return "yes" if good else "no" if bad else "open"

    def __str__(self) -> str:
        value, low, high = self.found
        ends = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else ""
        return f"{self.what} {value:.2f}{ends}" if math.isfinite(value) else f"{self.what} not measured"


def run(settings: ClaimsSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("claims", settings)
    folders = list(dict.fromkeys((desk.report, desk.runs.home / "report")))
    found: dict[str, list[Plain]] = {name: rows_in(name, folders) for name in KEYS}
    if not any(found.values()):
        raise UserError(f"nothing was measured in {' or '.join(map(str, folders))}: run `tsdfm report measure` first")
    judges = list(dict.fromkeys(name for rows in found.values() for row in rows for name in row.get("judges") or ()))
    words = [Column(name, label, "left") for name, label in (("letter", ""), ("claim", "claim"), ("source", "source"))]
    words += [Column("answer", "answer", "left"), Column("numbers", "numbers", "left")]
    words += [Column(f"answer {name}", f"under {name}", "left") for name in judges[1:]]
    table = Table("claims", "The paper's claims, by what was measured", words)
    for claim in CLAIMS:
        for source in dict.fromkeys(run.source for run in (*desk.runs.models, *desk.runs.compasses)):
            exams = [c.path / "validation.json" for c in desk.runs.compasses if c.source == source]
            seen = [parts_of(claim, source, judge, found, settings, exams) for judge in judges or [""]]
            if any(math.isfinite(part.found.value) for part in seen[0]):
                known = {"letter": claim.letter, "claim": claim.words.format(**asdict(settings)), "source": source}
                table.add(**known, answer=answer(seen[0]), numbers="; ".join(map(str, seen[0])))
                table.rows[-1] |= {f"answer {n}": answer(mine) for n, mine in zip(judges[1:], seen[1:], strict=True)}
    unknown = [claim.letter for claim in CLAIMS if claim.letter not in {row["letter"] for row in table.rows}]
    if unknown:
        table.title += f" ({len(unknown)} of {len(CLAIMS)} not measured: {', '.join(unknown)})"
    table.notes += [
        "yes: every 95 % interval supports it; no: one contradicts it; open: one holds equality, or is not measured",
        "ratios of perplexities, below 1 is better; at matched entropy by bootstrap over the same texts",
    ]
    table.about = {"judge_names": judges}
    return desk.finish(table, sampled=False)


def rows_in(name: str, folders: Sequence[Path]) -> list[Plain]:
    """The rows of a table that was written, from the first folder that has it: at T = 1, and nothing quoted."""
    path = next((folder / f"{name}.json" for folder in folders if (folder / f"{name}.json").is_file()), None)
    content = read_any(path) if path else []
    rows = content.get("rows", []) if isinstance(content, dict) else content
    kept = [row for row in rows if isinstance(row, dict) and not row.get("paper") and row.get("source")]
    return [row for row in kept if row.get("temperature") in (None, 1.0) and not (name == "metrics" and row["guide"])]


def answer(parts: Sequence[Part]) -> str:
    """Yes if every part says so, no if any says no."""
    said = {part.answer for part in parts}
    return "no" if "no" in said else "yes" if said == {"yes"} else "open"


def parts_of(
    claim: Claim, source: str, judge: str, found: Mapping[str, list[Plain]], settings: ClaimsSettings, exams: list[Path]
) -> list[Part]:
    """What a claim rests on, under one judge."""
    if claim.table == "compass":
        return accuracy(exams, settings.accuracy)
    rows = [
        {**row, **(row.get("judges") or {}).get(judge, {})} for row in found[claim.table] if row["source"] == source
    ]
    out, names = list[Part](), [names_of(name, settings) for name in (claim.one, *claim.others)]
    for one, other in [(a, b) for a in names[0] for more in names[1:] for b in more] or [(names[0][0], "")]:
        before, key = len(out), KEYS[claim.table]
        for mine in rows_of(rows, key, one):
            if claim.table == "frontier" or not other:
                figures = mine if mine.get("control_method") == other or not other else mine["against"].get(other, {})
                out += [Part(f"{mine['steps']} steps / {other or 'blind'}", matched(figures), claim.expected)]
                continue
            for theirs in rows_of(rows, key, other):
                if "@" in other or mine["steps"] == theirs["steps"]:
                    pair = (theirs, mine) if claim.swap and source == "mask" else (mine, theirs)
                    out.append(Part(f"{mine['steps']} steps / {other.split('@')[0]}", ratio(*pair), claim.expected))
        out += [Part(f"{one} / {other}")] if len(out) == before else []
    return out


def names_of(name: str, settings: ClaimsSettings) -> tuple[str, ...]:
    """A name with the settings filled in; a setting that is a list gives several."""
    return settings.thresholds if name == "{thresholds}" else (name.format(**asdict(settings)),)


def rows_of(rows: Sequence[Plain], key: str, name: str) -> list[Plain]:
    """The rows of a method, a policy or a K; of `name@8,16` at these step counts alone."""
    named, _, steps = name.partition("@")
    asked = [int(at) for at in steps.split(",")] if steps else None
    return [row for row in rows if str(row.get(key)) == named and (asked is None or row["steps"] in asked)]


def ratio(one: Plain, two: Plain) -> Estimate:
    """ppl(one) / ppl(two), with an interval where both have one."""
    a, b = estimate(one, "ppl"), estimate(two, "ppl")
    if not a or not b:
        return UNKNOWN
    spread = math.sqrt(sum(math.log(e.high / e.low) ** 2 for e in (a, b))) / 2 if a.low > 0 and b.low > 0 else math.nan
    return Estimate(*(a.value / b.value * math.exp(by) for by in (0.0, -spread, spread)))


def matched(figures: Mapping[str, Any]) -> Estimate:
    """The ratio at matched entropy: at the method's own entropy, or else over the shared ones."""
    for name, ends in (("at_own_entropy", "at_own_interval"), ("over_overlap", "over_interval")):
        value, interval = figures.get(f"ratio_{name}"), figures.get(f"ratio_{ends}")
        if value is not None:
            return Estimate(value, *(interval or ()))
    return UNKNOWN


def accuracy(exams: Sequence[Path], wanted: float) -> list[Part]:
    """The mean accuracy of the first compass over its strategies: Wilson's half-widths, added as variances are."""
    exam = read_any(exams[0]) if exams and exams[0].is_file() else {}
    right, pairs = exam.get("accuracy") or {}, exam.get("pairs") or {}
    known = [(right[n], pairs[n]) for n in right if n not in ("velocity_step", "overall") and pairs.get(n)]
    if not known:
        return [Part("compass")]
    mean, ends = sum(share for share, _ in known) / len(known), [(p, *wilson(round(p * n), n)) for p, n in known]
    down, up = (math.sqrt(sum((one[0] - one[i]) ** 2 for one in ends)) / len(known) for i in (1, 2))
    return [Part(exams[0].parent.name, Estimate(mean, mean - down, mean + up), "above", wanted)]
