"""Where the numbers come from: every stage with its settings, seed and hashes, and what ran it."""

from __future__ import annotations

import json
from typing import Any

from tsdfm.report.page.gather import Found, Stage, portable
from tsdfm.report.page.markup import details, esc, number, table


def provenance(found: Found) -> str:
    """The stages as a table, how the rows were measured, and each stage's settings to unfold."""
    rows = [stage_row(stage) for stage in found.stages]
    head = ["folder", "stage", "made", "seed", "steps", "weights, sha256", "made from"]
    out = table(head, rows, left=7, label="stages") if rows else ""
    facts = "".join(f"<div><dt>{esc(name)}</dt><dd>{value}</dd></div>" for name, value in about(found).items() if value)
    out += f'<dl class="facts">{facts}</dl>' if facts else ""
    settings = ""
    for stage in found.stages:
        text = json.dumps(portable(stage.manifest.get("settings", {}), found.folder), indent=1, ensure_ascii=False)
        settings += details(esc(stage.name), f"<pre>{esc(text)}</pre>")
    return out + (details("The settings of every stage", settings) if settings else "")


def stage_row(stage: Stage) -> list[str]:
    """One stage: what it is, when it was made, and from what."""
    about = stage.manifest
    files = about.get("files") or {}
    weights = (files.get("ema.safetensors") or files.get("model.safetensors") or {}).get("sha256")
    inputs = [
        f"{esc(name)} <code>{esc(made.get('sha256', '')[:8])}</code>"
        for name, made in (about.get("inputs") or {}).items()
    ]
    steps = (
        (about.get("settings") or {}).get("loop", {}).get("steps") if isinstance(about.get("settings"), dict) else None
    )
    return [
        esc(stage.name),
        esc(stage.stage),
        f'<span class="method">{esc(str(about.get("created", ""))[:16].replace("T", " "))}</span>',
        number(about.get("seed")),
        number(steps),
        f"<code>{esc(weights[:16])}</code>" if weights else "",
        ", ".join(inputs),
    ]


def about(found: Found) -> dict[str, str]:
    """What all rows share, and the commands that make them again."""
    rows, tables = found.made, [*found.tables.values(), found.frontier]
    versions = [stage.manifest.get("versions") or {} for stage in found.stages]
    software = [f"{name} {version}" for name, version in (versions[-1] if versions else {}).items() if version]
    commands = ["tsdfm pipeline RECIPE --out FOLDER", *(t["command"] for t in tables if t.get("command"))]
    compass = sorted({way.compass for way in found.ways if way.compass})
    return {
        "judge": one_of(rows, "judge"),
        "texts a row": one_of(rows, "samples"),
        "tokens a text": one_of(rows, "length"),
        "sampling seed": one_of(rows, "seed"),
        "temperature": one_of(rows, "temperature"),
        "top-p": one_of(rows, "top_p"),
        "draws": one_of(rows, "draw"),
        "precision": one_of(rows, "precision"),
        "hardware": one_of([*rows, *tables], "hardware"),
        "software": esc(", ".join(software)),
        "checkpoints measured": ", ".join(f"<code>{esc(c)}</code>" for c in every(rows, "checkpoint")),
        "compass of the trajectories": ", ".join(f"<code>{esc(c)}</code>" for c in compass),
        "commands": "<br>".join(f"<code>{esc(command)}</code>" for command in dict.fromkeys(commands)),
    }


def every(rows: list[dict[str, Any]], name: str) -> list[str]:
    """The values a column has, each once."""
    return list(dict.fromkeys(str(row[name]) for row in rows if row.get(name) not in (None, "")))


def one_of(rows: list[dict[str, Any]], name: str) -> str:
    return esc(", ".join(every(rows, name)))
