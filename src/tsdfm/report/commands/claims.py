"""`tsdfm report claims`: the paper's claims, answered from what other commands have written. Nothing is sampled.

Reads `metrics.json` (report measure), `frontier.json`, `policy.json` and `candidates.json`, each from --out or else
from the runs' own report folder, as far as they are there, and of the runs `validation.json` and their manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.claims.answers import CLAIMS, Claim
from tsdfm.report.claims.evidence import Evidence, Trained, Verdict
from tsdfm.report.desk import Desk
from tsdfm.report.page.gather import as_table, read
from tsdfm.report.runs import SOURCES
from tsdfm.report.settings import ClaimsSettings
from tsdfm.report.table import Column, Table

FILES = ("metrics", "frontier", "policy", "candidates")


def run(settings: ClaimsSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("claims", settings)
    places = places_of(desk)
    if not places:
        looked = " or ".join(str(folder) for folder in folders_of(desk))
        raise UserError(f"nothing was measured in {looked}: run `tsdfm report measure` and the others first")
    found = {name: read_table(places[name]) if name in places else [] for name in FILES}
    judges = judges_of(found)
    old = ascribe(found, judges)
    exams, trained = validations(desk), trained_by_source(desk)
    table = Table("claims", "The paper's claims, by what was measured", columns(judges))
    for claim in CLAIMS:
        for source in sources_of(found, exams):
            about = {"exams": exams.get(source, {}), "trained": trained.get(source, ())}
            table.add(**row_of(claim, source, {**found, **about}, judges, settings))
    table.notes += notes_on(judges)
    table.notes += [f"{name}.json is of an older version: its figures are taken as those of {who}" for name, who in old]
    elsewhere = [path.name for path in places.values() if path.parent != desk.report]
    if elsewhere:
        table.notes.append(f"read from the runs' own report folder: {', '.join(elsewhere)}")
    table.about = {"judge_names": judges}
    return desk.finish(table, sampled=False)


def folders_of(desk: Desk) -> list[Path]:
    """Where tables may lie: in --out, and where the runs have their report."""
    return list(dict.fromkeys((desk.report, desk.found.home / "report")))


def places_of(desk: Desk) -> dict[str, Path]:
    """Every table that is there, each from the first folder that has it."""
    every = {name: [folder / f"{name}.json" for folder in folders_of(desk)] for name in FILES}
    known = {name: next((path for path in paths if path.is_file()), None) for name, paths in every.items()}
    return {name: path for name, path in known.items() if path is not None}


def read_table(path: Path) -> list[dict[str, Any]]:
    """A table's rows. One without `judges` or `judge`, of an older version, gets the table's first judge."""
    content = read(path)
    about = as_table(content)
    listed = content if isinstance(content, list) else about.get("rows") or []
    rows = [row for row in listed if isinstance(row, dict)]
    judge = about.get("judge") or next(iter(about.get("judge_names") or ()), None)
    return [{"judge": judge, **row} if judge and "judges" not in row else row for row in rows]


def ascribe(found: Mapping[str, list[dict[str, Any]]], judges: list[str]) -> list[tuple[str, str]]:
    """Give rows of older versions that name no judge to the first one; returns the tables that have any, and whose."""
    old: dict[tuple[str, str], None] = {}
    for name, rows in found.items():
        for row in rows if judges else ():
            if "judges" not in row and not row.get("paper") and row.get("source"):
                row["judge"] = row.get("judge") or judges[0]
                old[name, row["judge"]] = None
    return list(old)


def validations(desk: Desk) -> dict[str, dict[str, Any]]:
    """By source: the examination of each compass by its run's name, the plain one first."""
    out: dict[str, dict[str, Any]] = {}
    for compass in desk.found.compasses:
        path = compass.path / "validation.json"
        if path.is_file():
            out.setdefault(compass.source, {})[compass.name] = as_table(read(path))
    return out


def trained_by_source(desk: Desk) -> dict[str, list[Trained]]:
    """By source: what decides which control belongs to a student, off the runs' manifests."""
    out: dict[str, list[Trained]] = {}
    for run in desk.found.models:
        if run.is_student:
            given = run.settings
            one = Trained(
                label=desk.label(run),
                method=run.method,
                divergence=str(given.get("divergence", "unknown")),
                average=str(given.get("average", "unknown values")),
                steps=as_table(given.get("loop")).get("steps"),
                blind=given.get("policy") == "blind",
                went_on=run.started_from() == "FS-DFM",
            )
            out.setdefault(run.source, []).append(one)
    return out


def judges_of(found: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Every judge's fingerprint, in the order of the first table that has any."""
    rows = [row for name in FILES for row in found[name]]
    return list(dict.fromkeys(name for row in rows for name in row.get("judges") or ()))


def sources_of(found: Mapping[str, list[dict[str, Any]]], exams: Mapping[str, Any]) -> list[str]:
    """The sources of which anything was measured, uniform first."""
    rows = [row for some in found.values() for row in some if not row.get("paper")]
    every = {str(row["source"]) for row in rows if row.get("source")} | set(exams)
    return sorted(every, key=lambda name: (SOURCES.index(name) if name in SOURCES else len(SOURCES), name))


def row_of(
    claim: Claim,
    source: str,
    found: Mapping[str, Any],
    judges: list[str],
    settings: ClaimsSettings,
) -> dict[str, Any]:
    """One claim for one source: the first judge's answer, and every judge's under `judges`."""
    seen: dict[str, Verdict] = {}
    for judge in (judges or [""]) if claim.judged else [""]:
        seen[judge] = claim.answer(Evidence(source, judge or None, **found), settings)
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
        "accuracy: the mean over strategies; its interval has their Wilson half-widths, added as variances are",
        "T = 1: both perplexities' intervals, joined as independent; at matched entropy: bootstrap over the same texts",
    ]
    if len(judges) > 1:
        notes.append(f"answers and numbers are those of {judges[0]}; another judge's stand where it disagrees")
    return notes
