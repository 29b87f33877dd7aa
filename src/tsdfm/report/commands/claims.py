"""`tsdfm report claims`: the paper's claims, answered from what other commands have written. Nothing is sampled.

Reads from the report's folder `metrics.json` (report measure), `frontier.json`, `policy.json` and `candidates.json`,
as far as they are there, and `validation.json` of each compass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.claims.answers import CLAIMS, Claim
from tsdfm.report.claims.evidence import Evidence, Verdict
from tsdfm.report.desk import Desk
from tsdfm.report.page.gather import read
from tsdfm.report.runs import SOURCES
from tsdfm.report.settings import ClaimsSettings
from tsdfm.report.table import Column, Table

TABLES = ("frontier", "policy", "candidates")


def run(settings: ClaimsSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("claims", settings)
    found = read_all(desk.report)
    exams = validations(desk)
    if not any(found.values()) and not exams:
        raise UserError(f"nothing was measured in {desk.report}: run `tsdfm report measure` and the others first")
    judges = judges_of(found)
    table = Table("claims", "The paper's claims, by what was measured", columns(judges))
    for claim in CLAIMS:
        for source in sources_of(found, exams):
            table.add(**row_of(claim, source, found, exams.get(source, {}), judges, settings))
    table.notes += notes_on(judges)
    table.about = {"judge_names": judges}
    return desk.finish(table, sampled=False)


def read_all(report: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every file that is there."""
    out: dict[str, list[dict[str, Any]]] = {}
    for name in ("metrics", *TABLES):
        content = read(report / f"{name}.json", [])
        rows = content.get("rows", []) if isinstance(content, dict) else content
        out[name] = [row for row in rows if isinstance(row, dict)]
    return out


def validations(desk: Desk) -> dict[str, dict[str, Any]]:
    """By source: the examination of each compass by its run's name, the plain one first."""
    out: dict[str, dict[str, Any]] = {}
    for compass in desk.found.compasses:
        path = compass.path / "validation.json"
        if path.is_file():
            out.setdefault(compass.source, {})[compass.name] = read(path)
    return out


def judges_of(found: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Every judge's fingerprint, in the order of the first table that has any."""
    rows = [row for name in ("metrics", *TABLES) for row in found[name]]
    return list(dict.fromkeys(name for row in rows for name in row.get("judges") or ()))


def sources_of(found: Mapping[str, list[dict[str, Any]]], exams: Mapping[str, Any]) -> list[str]:
    """The sources of which anything was measured, uniform first."""
    rows = [row for some in found.values() for row in some if not row.get("paper")]
    every = {str(row["source"]) for row in rows if row.get("source")} | set(exams)
    return sorted(every, key=lambda name: (SOURCES.index(name) if name in SOURCES else len(SOURCES), name))


def row_of(
    claim: Claim,
    source: str,
    found: Mapping[str, list[dict[str, Any]]],
    exams: Mapping[str, Any],
    judges: list[str],
    settings: ClaimsSettings,
) -> dict[str, Any]:
    """One claim for one source: the first judge's answer, and every judge's under `judges`."""
    seen: dict[str, Verdict] = {}
    for judge in (judges or [""]) if claim.judged else [""]:
        seen[judge] = claim.answer(Evidence(source, judge or None, **found, exams=exams), settings)
    first = next(iter(seen.values()))
    row: dict[str, Any] = {
        "letter": claim.letter,
        "claim": claim.words.format(**asdict(settings)),
        "source": source,
        "answer": first.answer,
        "numbers": str(first),
        "parts": [part.plain() for part in first.parts],
    }
    row["judges"] = {
        name: {"answer": one.answer, "numbers": str(one), "parts": [part.plain() for part in one.parts]}
        for name, one in seen.items()
        if name
    }
    for name, one in list(seen.items())[1:]:
        row[f"answer {name}"] = one.answer if one.answer == first.answer else f"{one.answer}: {one}"
    return row


def columns(judges: list[str]) -> list[Column]:
    """The first judge's answer with its numbers, and what the others say."""
    return [
        Column("letter", "", "left"),
        Column("claim", "claim", "left"),
        Column("source", "source", "left"),
        Column("answer", "answer", "left"),
        Column("numbers", "numbers", "left"),
        *(Column(f"answer {name}", f"under {name}", "left") for name in judges[1:]),
    ]


def notes_on(judges: list[str]) -> list[str]:
    """What the words mean."""
    notes = [
        "yes: every 95 % interval supports it; no: one contradicts it; open: not measured, or an interval holds 1",
        "ratios of perplexities, below 1 is better; † collapsed: entropy more than one bit under held-out text",
        "T = 1: both perplexities' intervals, joined as independent; at matched entropy: bootstrap over the same texts",
    ]
    if len(judges) > 1:
        notes.append(f"answers and numbers are those of {judges[0]}; another judge's stand where it disagrees")
    return notes
