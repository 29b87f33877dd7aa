"""Put the page together: what the template is told, the same as Markdown, and the command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from tsdfm import __version__, terminal
from tsdfm.report.commands.compass import validation_table
from tsdfm.report.page import charts
from tsdfm.report.page.gather import Gathered, gather, group_of, portable
from tsdfm.report.page.markup import document, number
from tsdfm.report.page.ways import player_data, players
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.settings import PageSettings
from tsdfm.report.summary import by_steps, every_row, with_interval
from tsdfm.report.table import BETTER, PPL, VALID, Column, Table, markdown_escape
from tsdfm.store.files import write_text

SHARED = {"judge": "judge", "texts a row": "samples", "tokens a text": "length", "sampling seed": "seed",
          "temperature": "temperature", "top-p": "top_p", "draws": "draw", "precision": "precision",
          "hardware": "hardware"}  # fmt: skip
"""What all rows share: what the page calls it, and the field."""
GROUPS = ("Teachers", "Compasses", "Students and others")
STAGES = {"folder": "folder", "stage": "stage", "made": "made", "seed": "seed", "steps": "steps",
          "weights": "weights, sha256", "inputs": "made from"}  # fmt: skip


def build_page(folder: str | Path) -> Path:
    """Write OUT/report/index.html from what lies in the pipeline's folder OUT, and return its path."""
    return write_text(Path(folder) / "report" / "index.html", page_of(gather(folder)))


def run(settings: PageSettings) -> Path:
    """`tsdfm report page`: write the page and say where it is."""
    if settings.markdown is not None:
        path = write_text(settings.markdown, markdown_of(gather(settings.folder)))
    else:
        path = build_page(settings.folder)
    print(path)
    if settings.markdown is None:
        terminal.made("report page", "one file, open it in a browser", path, "view", settings.folder)
    if settings.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return path


def page_of(found: Gathered) -> str:
    """The report as HTML."""
    styles, groups, name = found.styles(), players(found.ways), found.folder.resolve().name
    first = replace(VALID, format=".1%") if any(row.valid for row in found.made) else PPL
    kinds = {kind: [s for s in found.stages if s.lines and group_of(s) == kind] for kind in GROUPS}
    curves = {kind: charts.training(kind, runs) for kind, runs in kinds.items()}
    steered, tables = {stage.name: charts.navigation(stage) for stage in found.stages}, headline(found, first)
    return document(
        "report.html",
        title=f"{name} · tsdfm report",
        data={"players": [player_data(group, styles) for group in groups]},
        name=name,
        found=found,
        styles=styles,
        first=first.label.capitalize(),
        told=lambda row: told(row, first),
        charts={
            "quality": {source: charts.quality(found, source) for source in found.sources},
            "frontier": {entropy: charts.frontier(found, entropy) for entropy in charts.ENTROPIES},
            "energy": charts.energy(found),
            "training": {kind: some for kind, some in curves.items() if some},
            "navigation": {name: some for name, some in steered.items() if some},
        },
        groups=groups,
        compared=compared(found),
        headline=tables,
        glance=glance(tables),
        every=every_row([*found.made, *(row for row in found.rows if row not in found.made)], wide=True),
        exams=validation_table(found.compass),
        stages=stage_table(found),
        facts=facts(found),
        settings=settings_of(found),
        version=__version__,
    )


def markdown_of(found: Gathered) -> str:
    """The report as one page of Markdown: what was measured, every table, where it comes from, the settings."""
    out = [f"# {found.folder.resolve().name}", "", "## Where this comes from", ""]
    out += [f"- {name}: {', '.join(map(markdown_escape, values))}" for name, values in facts(found).items() if values]
    out += ["", stage_table(found).markdown()]
    rows = [*found.made, *([found.real] if found.real else [])]
    tables = [by_steps(rows), every_row(rows)] if found.made else []
    tables += [*([found.frontier] if found.frontier else []), *found.tables.values()]
    out += ["## Tables", "", *(table.markdown() for table in tables)] if tables else []
    out += ["## Settings", ""]
    for name, text in settings_of(found).items():
        out += [f"<details><summary>{escape(name)}</summary>", "", "```json", text, "```", "", "</details>", ""]
    return "\n".join(out)


def compared(found: Gathered) -> str:
    """What is compared, in a few words."""
    names = [name for name in found.methods if name != REAL]
    words = [f"{len(names)} method{'s' if len(names) != 1 else ''}"] if names else []
    words += [f"{' and '.join(found.sources)} source"] if found.sources else []
    return f"{', '.join(words)}.".capitalize()


def told(row: Row, column: Column) -> str | None:
    """The figure of a row that a column shows, with its interval."""
    return with_interval(getattr(row, column.name), column.format)


def headline(found: Gathered, first: Column) -> list[Table]:
    """Methods by steps, a table for each source with held-out text last; `best` of a row are its bold columns."""
    out, better = [], max if BETTER[first.label] == "higher" else min
    for source in found.sources:
        rows = [row for row in found.made if row.source == source and told(row, first)]
        table = by_steps(rows, lambda row: told(row, first))
        table.title, table.columns = f"{first.label.capitalize()} by network passes, {source} source", table.columns[1:]
        for at in {row.steps for row in rows}:
            best = better((row for row in rows if row.steps == at), key=lambda row: getattr(row, first.name).value)
            for line in table.rows:
                line.setdefault("best", []).extend([str(at)] if line.get(str(at)) == told(best, first) else [])
        if found.real and (target := told(found.real, first)):
            table.add(method=REAL, **{column.name: target for column in table.columns[1:]})
        out += [table] if rows else []
    return out


def glance(tables: Sequence[Table]) -> Plain | None:
    """The first of these tables at the step count that most methods share."""
    if not tables:
        return None
    counts = {c.name: sum(c.name in row for row in tables[0].rows) for c in tables[0].columns[1:]}
    shared = [at for at, count in counts.items() if count == max(counts.values())]
    at = "8" if "8" in shared else shared[0]  # the paper's headline is at eight
    return {"table": tables[0], "at": at}


def stage_table(found: Gathered) -> Table:
    """The stages: what each is, when it was made, and from what."""
    table = Table("stages", "Stages", [Column(name, label, "left") for name, label in STAGES.items()])
    for stage in found.stages:
        about, files = stage.manifest, stage.manifest.get("files") or {}
        weights = files.get("ema.safetensors") or files.get("model.safetensors") or {}
        inputs = [f"{name} {made.get('sha256', '')[:8]}" for name, made in (about.get("inputs") or {}).items()]
        table.add(
            folder=stage.name,
            stage=str(about.get("stage", stage.name)),
            made=str(about.get("created", ""))[:16].replace("T", " "),
            seed=number(about.get("seed")),
            steps=number((stage.settings.get("loop") or {}).get("steps")),
            weights=weights.get("sha256", "")[:16],
            inputs=", ".join(inputs),
        )
    return table


def settings_of(found: Gathered) -> dict[str, str]:
    """Every stage's settings as text."""
    plain = {stage.name: portable(stage.settings, found.folder) for stage in found.stages}
    return {name: json.dumps(one, indent=1, ensure_ascii=False) for name, one in plain.items()}


def commit() -> list[str]:
    """The commit of the checkout that the package lies in, if it lies in one."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [f"commit {done.stdout.strip()}"]


def facts(found: Gathered) -> dict[str, list[str]]:
    """What all rows share, and the commands that make them again."""
    versions = found.stages[-1].manifest.get("versions") or {} if found.stages else {}

    def every(name: str) -> list[str]:
        values = [getattr(row, name) for row in found.made]
        return list(dict.fromkeys(str(value) for value in values if value not in (None, "")))

    return {label: every(name) for label, name in SHARED.items()} | {
        "software": [f"{name} {version}" for name, version in versions.items() if version],
        "report written by": [f"tsdfm {__version__}", *commit()],
        "checkpoints measured": every("checkpoint"),
        "compass of the trajectories": sorted({way.compass for way in found.ways if way.compass}),
        "commands": ["tsdfm pipeline RECIPE --out FOLDER", *dict.fromkeys(found.commands)],
    }
