"""Put the page together: what the template is told, the same as Markdown, and the command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tsdfm import __version__, terminal
from tsdfm.report.page import charts
from tsdfm.report.page.gather import Gathered, gather, group_of, portable
from tsdfm.report.page.markup import document, number, percent
from tsdfm.report.page.ways import player_data, players
from tsdfm.report.rows import REAL, Plain, Row, finite
from tsdfm.report.settings import PageSettings
from tsdfm.report.summary import by_steps, every_row
from tsdfm.report.table import Column, Table, markdown_escape
from tsdfm.store.files import write_text

Show = Callable[[Any], str]
COLUMNS: tuple[tuple[str, str, Show], ...] = (
    ("valid", "valid", percent),
    ("ppl", "perplexity", number),
    ("ppl_corpus", "ppl, pooled", number),
    ("ppl_median", "ppl, median", number),
    ("nll", "NLL, nats a text", lambda v: number(v, 1)),
    ("bits_per_char", "bits a character", number),
    ("entropy_bits", "entropy, bits", number),
    ("bigram_entropy_bits", "bigram entropy", number),
    ("repetition", "repetition", percent),
    ("compass_calls", "compass calls", lambda v: number(v, 0)),
    ("tokens_per_s", "tokens/s", lambda v: number(v, 0)),
)
SHARED = {"judge": "judge", "texts a row": "samples", "tokens a text": "length", "sampling seed": "seed",
          "temperature": "temperature", "top-p": "top_p", "draws": "draw", "precision": "precision",
          "hardware": "hardware"}  # fmt: skip
"""What all rows share: what the page calls it, and the field."""
GROUPS = ("Teachers", "Compasses", "Students and others")
STAGES = {"folder": "folder", "stage": "stage", "made": "made", "seed": "seed", "steps": "steps",
          "weights": "weights, sha256", "inputs": "made from"}  # fmt: skip


class Measure(NamedTuple):
    """What the headline counts."""

    name: str
    title: str
    show: Show
    best: Callable[..., float]


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
    stories = any(row.valid for row in found.made)
    first = Measure("valid", "Valid stories", percent, max) if stories else Measure("ppl", "Perplexity", number, min)
    kinds = {kind: [s for s in found.stages if s.lines and group_of(s) == kind] for kind in GROUPS}
    curves = {kind: charts.training(kind, runs) for kind, runs in kinds.items()}
    steered = {stage.name: charts.navigation(stage) for stage in found.stages}
    return document(
        "report.html",
        title=f"{name} · tsdfm report",
        data={"players": [player_data(group, styles) for group in groups]},
        name=name,
        found=found,
        styles=styles,
        first=first,
        charts={
            "quality": {source: charts.quality(found, source) for source in found.sources},
            "frontier": {entropy: charts.frontier(found, entropy) for entropy in charts.ENTROPIES},
            "energy": charts.energy(found),
            "training": {kind: some for kind, some in curves.items() if some},
            "navigation": {name: some for name, some in steered.items() if some},
        },
        groups=groups,
        compared=compared(found),
        headline=headline(found, first),
        glance=glance(found, first),
        every=everything(found),
        exams=examined(found),
        stages=stage_table(found),
        facts=facts(found),
        settings=settings_of(found),
        version=__version__,
        measure_of=charts.measure_of,
        stage_cells=lambda table: [table.cells(row) for row in table.rows],
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


def headline(found: Gathered, first: Measure) -> list[Plain]:
    """Methods by steps, a table for each source."""
    out = []
    for source in found.sources:
        cells: dict[str, dict[int | None, Row]] = {}
        values: dict[int, list[float]] = {}
        for row in found.made:
            if row.source == source and row.steps is not None and (value := charts.measure_of(row, first.name)):
                cells.setdefault(row.label, {})[row.steps] = row
                values.setdefault(row.steps, []).append(value.value)
        best = {at: first.best(some) for at, some in values.items()}
        out += [{"source": source, "steps": sorted(values), "best": best, "cells": cells}] if cells else []
    return out


def glance(found: Gathered, first: Measure) -> Plain | None:
    """The first source at the step count most methods share: a row a method, the target last."""
    for source in found.sources:
        rows = [row for row in found.made if row.source == source and charts.measure_of(row, first.name)]
        if rows:
            counts = [row.steps or 0 for row in rows]
            shared = {at for at in counts if counts.count(at) == max(map(counts.count, counts))}
            steps = 8 if 8 in shared else min(shared)  # the paper's headline is at eight
            real = [found.real] if found.real and charts.measure_of(found.real, first.name) else []
            return {"source": source, "steps": steps, "rows": [row for row in rows if row.steps == steps] + real}
    return None


def everything(found: Gathered) -> Plain:
    """Every row, and every column that has something in it."""
    rows = [*found.made, *(row for row in found.rows if row.method == REAL)]
    rows += [row for row in found.rows if row not in rows]
    columns = [
        c for c in COLUMNS if any((v := charts.measure_of(r, c[0])) and (v.value or "calls" not in c[0]) for r in rows)
    ]
    temperatures = {row.temperature for row in rows if row.steps is not None}
    return {"rows": rows, "columns": columns, "temperatures": len(temperatures) > 1}


def examined(found: Gathered) -> Plain | None:
    """What the examination of each compass said."""
    names = list(dict.fromkeys(name for exam in found.compass.values() for name in exam.get("accuracy") or {}))
    rows = []
    for source, exam in found.compass.items():
        shares = [*((exam.get("accuracy") or {}).get(name) for name in names), exam.get("smoothness")]
        shown = [percent(share) if finite(share) else "" for share in shares]
        rows.append([source, *shown, number(exam.get("spearman"))])
    words = [name.replace("_", " ") for name in names]
    head = ["source", *words, "falls between neighbouring times", "rank correlation with t"]
    return {"head": head, "rows": rows} if rows else None


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
