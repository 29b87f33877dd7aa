"""The measuring stage: sample a model at several step counts, judge the texts, and lay real text beside them.

    run(MeasureSettings(samples=64), [Path("runs/demo/teacher-uniform")], Path("runs/demo/tokens"), Path("report"))

writes `metrics.json`, a list of rows, and keeps every cell, so that a measurement that was broken off goes on where it
was, and the commands of `tsdfm report` find what has been sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from torch import Tensor

from tsdfm.engine.distributed import pick_device
from tsdfm.nn.velocity import run_folder
from tsdfm.report.cells import Cell, Cells, written
from tsdfm.report.hardware import hardware
from tsdfm.report.score import Bench
from tsdfm.report.settings import MeasureSettings
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel, load
from tsdfm.settings import to_dict
from tsdfm.store.bundle import on_disk
from tsdfm.store.files import file_sha256, write_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import write_manifest
from tsdfm.tokens.rows import TokenRows

__all__ = ["MeasureSettings", "mark_collapsed", "measure", "real_row", "run", "write_metrics", "written"]

DRAW = "float32 weights, 53-bit uniforms"
REAL = "held-out text"
COLLAPSE = 1.0
"""Bits of entropy under real text from which on a row counts as collapsed."""

Say = Callable[[str], None]


def run(settings: MeasureSettings, models: Sequence[Path], tokens: Path, out: Path) -> Path:
    """Measure every model, write `metrics.json` (and `frontier.json` if asked) into `out`, print the table."""
    from tsdfm.report.summary import show

    console = Console(stderr=True)
    cells, rows = Cells(out / "cells"), list[dict[str, Any]]()
    bench = Bench(settings, cells)
    for model in models:
        rows += measure(settings, model, console.print, bench=bench)
    rows.append(real_row(settings, tokens, bench=bench))
    mark_collapsed(rows)
    write_metrics(out, rows)
    inputs = {"tokens": tokens}
    names = [str(model) if twice(model, models) else model.name for model in models]
    inputs |= {name: on_disk(model, name, "student") for name, model in zip(names, models, strict=True)}
    write_manifest(out, stage="report", settings=settings, inputs=inputs)
    for row in rows[:-1]:
        title = f"{row['method']}, {row['source']} source, {row['steps']} steps"
        if row["texts"]:
            console.print(f"[dim]{title}:[/dim] {escape(row['texts'][0])}", highlight=False, soft_wrap=True)
    show(rows)
    if settings.frontier:
        sweep(settings, models, tokens, out)
    return out


def twice(model: Path, models: Sequence[Path]) -> bool:
    """Has another of the models the same name?"""
    return sum(other.name == model.name for other in models) > 1


def sweep(settings: MeasureSettings, models: Sequence[Path], tokens: Path, out: Path) -> None:
    """The frontier of the same models, by the same judges."""
    from tsdfm.report.commands.frontier import run as make_frontier
    from tsdfm.report.settings import FrontierSettings

    make_frontier(
        FrontierSettings(
            runs=tuple(models),
            out=out,
            tokens=tokens,
            samples=settings.samples,
            seed=settings.seed,
            top_p=settings.top_p,
            jump=settings.jump,
            world=settings.world or "",
            judges=settings.judges,
            device=settings.device,
            steps=settings.frontier_steps or settings.steps,
            temperatures=settings.temperatures,
            control=settings.control,
            definition=settings.definition,
        )
    )


def measure(
    settings: MeasureSettings,
    model: Path,
    say: Say,
    *,
    name: str | None = None,
    guide: Guide | None = None,
    bench: Bench | None = None,
) -> list[dict[str, Any]]:
    """One row for each step count. `name` is what the rows call the method; `bench` keeps judges and cells."""
    made, bench = load(model, settings.device), bench or Bench(settings)
    rows = []
    for steps in settings.steps_of(made.method):
        cell = sampled(settings, made, steps, bench.cells, guide=guide)
        rows.append(row_of(settings, made, cell, bench, name=name, guide=guide))
        say(spoken(rows[-1]))
    return rows


def spoken(row: Mapping[str, Any]) -> str:
    """A row in one line."""
    said = f"{row['method']}, {row['source']}: {row['steps']} steps"
    said += f", guide {row['guide']}" if row.get("guide") else ""
    said += f", T = {row['temperature']:g}" if row["temperature"] != 1.0 else ""
    said += f", valid {row['valid']:.3f}" if "valid" in row else ""
    said += f", perplexity {row['ppl']:.2f}" if row.get("ppl") is not None else ""
    return f"{said}, entropy {row['entropy_bits']:.2f} bits"


def sampled(
    settings: MeasureSettings,
    made: TextModel,
    steps: int,
    cells: Cells,
    *,
    guide: Guide | None = None,
    temperature: float | None = None,
    bias: Tensor | None = None,
) -> Cell:
    """The cell of one step count, from the disk or sampled now, with a progress bar on a terminal."""
    warmth = settings.temperature if temperature is None else temperature
    key = key_of(replace(settings, temperature=warmth), made, steps, guide)
    if bias is not None:
        key["bias"] = bias_key(bias)
    return cells.get(key, lambda: sample(made, key, guide, bias))


def run_name(checkpoint: Path) -> str:
    """The name of the run a checkpoint is of; BUNDLE/student for a bundle's file."""
    shipped = checkpoint.suffix == ".safetensors"
    return f"{checkpoint.parent.name}/{checkpoint.stem}" if shipped else run_folder(checkpoint).name


def bias_key(bias: Tensor) -> str:
    """A fingerprint of a bias of the logits [V]: its numbers in float32."""
    return hashlib.sha256(bias.detach().float().cpu().numpy().tobytes()).hexdigest()[:16]


def key_of(settings: MeasureSettings, made: TextModel, steps: int, guide: Guide | None) -> dict[str, Any]:
    """Everything that decides the texts of a cell."""
    jump = settings.jump
    if jump == "auto":
        jump = made.velocity.spec.usual_jump()
    return {
        "method": made.method,
        "source": made.velocity.spec.source,
        "steps": steps,
        "checkpoint": made.velocity.sha256[:16],
        "samples": settings.samples,
        "seed": settings.seed,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "jump": jump,
        "precision": "bf16" if made.bf16 else "float32",
        "guide": guide_key(guide),
    }


def guide_key(guide: Guide | None) -> dict[str, Any] | None:
    """A guide as plain values: its policy, its settings and its compass's hash."""
    if guide is None:
        return None
    compass = getattr(guide.compass, "sha256", "")[:16] or None
    navigate = to_dict(guide.settings)
    if not guide.settings.blocks or guide.policy == "token":
        del navigate["blocks"]  # without effect; cells were kept before there was such a setting
    return {"policy": guide.policy, "compass": compass, "navigate": navigate}


def sample(made: TextModel, key: dict[str, Any], guide: Guide | None, bias: Tensor | None = None) -> Cell:
    """Sample a cell."""
    spec, console = made.velocity.spec, Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task(f"{key['method']}, {key['source']}: {key['steps']} passes", total=key["samples"])
        found = made.sample(
            key["samples"],
            key["steps"],
            key["seed"],
            temperature=key["temperature"],
            top_p=key["top_p"],
            jump=key["jump"],
            on_batch=lambda done, _: bar.update(job, completed=done),
            guide=guide,
            bias=bias,
        )
    return Cell(
        key=key,
        method=made.method,
        source=spec.source,
        steps=key["steps"],
        nfe=found.nfe,
        length=spec.length,
        anchor=spec.anchor,
        end_of_text=made.tokenizer.end_of_text,
        seconds=found.seconds,
        hardware=hardware(made.velocity.device),
        texts=found.texts,
        tokens=found.tokens.tolist(),
        compass_calls=found.compass_calls,
        navigation=dict(found.navigation),
    )


def row_of(
    settings: MeasureSettings,
    made: TextModel,
    cell: Cell,
    bench: Bench,
    *,
    name: str | None = None,
    guide: Guide | None = None,
) -> dict[str, Any]:
    """The row of one cell, with all that is needed to make it again."""
    checkpoint = made.velocity.checkpoint
    return {
        "method": name or made.method,
        "source": cell.source,
        "steps": cell.steps,
        "nfe": cell.nfe,
        "compass_calls": cell.compass_calls,
        "guide": guide.policy if guide else None,
        **bench.fields(cell),
        "length": cell.length,
        "temperature": cell.key["temperature"],
        "top_p": cell.key["top_p"],
        "jump": cell.key["jump"],
        "draw": DRAW,
        "precision": cell.key["precision"],
        "seed": cell.key["seed"],
        "run": run_name(checkpoint) if checkpoint else None,
        "checkpoint": cell.key["checkpoint"],
        "hardware": cell.hardware,
        "tokens_per_s": len(cell.texts) * cell.length / cell.seconds,
        "texts": cell.texts[: settings.show],
        "collapsed": False,
    }


def real_row(settings: MeasureSettings, tokens: Path, *, bench: Bench | None = None) -> dict[str, Any]:
    """Held-out text, measured the same way: the target."""
    bench = bench or Bench(settings)
    cell = real_cell(settings, tokens, bench.cells)
    return {
        "method": REAL,
        "source": None,
        "steps": None,
        "nfe": None,
        "compass_calls": None,
        "guide": None,
        **bench.fields(cell),
        "length": cell.length,
        "temperature": None,
        "top_p": None,
        "seed": None,
        "checkpoint": None,
        "hardware": cell.hardware,
        "tokens_per_s": None,
        "texts": cell.texts[: settings.show],
        "collapsed": False,
    }


def real_cell(settings: MeasureSettings, tokens: Path, cells: Cells) -> Cell:
    """Held-out rows, evenly spread over the split, as a cell."""
    rows = TokenRows(tokens, "valid")
    picks = spread(len(rows), settings.samples)
    key = {"method": REAL, "tokens": file_sha256(tokens / MANIFEST)[:16], "samples": len(picks), "rows": "spread"}
    return cells.get(key, lambda: read_rows(rows, picks, key, settings.device))


def spread(rows: int, count: int) -> list[int]:
    """`count` rows evenly over all: row i·rows // count. Neighbours are often of one book, so the first will not do.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    count = min(count, rows)
    return [i * rows // count for i in range(count)]


def read_rows(rows: TokenRows, picks: Sequence[int], key: dict[str, Any], device: str) -> Cell:
    """Held-out rows with their texts, written as a model's are."""
    import torch

    kept = [rows[i].astype("int64") for i in picks]
    if rows.anchor:
        ids = [written(torch.from_numpy(row)[rows.anchor :], rows.end_of_text) for row in kept]
        texts = [rows.tokenizer.decode(row, end=" ¶ ") for row in ids]
    else:
        texts = [rows.tokenizer.decode(row, end="\n\n") for row in kept]
    return Cell(
        key=key,
        method=REAL,
        source=None,
        steps=None,
        nfe=None,
        length=rows.length,
        anchor=rows.anchor,
        end_of_text=rows.end_of_text,
        seconds=0.0,
        hardware=hardware(pick_device(device)),
        texts=texts,
        tokens=[row.tolist() for row in kept],
    )


def mark_collapsed(rows: Sequence[dict[str, Any]]) -> None:
    """Say of every row whether its entropy is more than one bit under held-out text's."""
    target = next((row["entropy_bits"] for row in rows if row["method"] == REAL), None)
    for row in rows:
        row["collapsed"] = target is not None and row["entropy_bits"] < target - COLLAPSE


def write_metrics(report: Path, rows: list[dict[str, Any]]) -> Path:
    """`metrics.json`: a list of rows."""
    return write_json(report / "metrics.json", rows)
