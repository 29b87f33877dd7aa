"""The measuring stage: sample models at several step counts, judge the texts, and lay held-out text beside them.

    run(MeasureSettings(samples=64), [Path("runs/demo/teacher-uniform")], Path("runs/demo/tokens"), Path("report"))

writes `metrics.json`, a list of rows, and keeps every cell, so that a measurement that was broken off goes on where it
was, and the commands of `tsdfm report` find what has been sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tsdfm.report.bench import Bench
from tsdfm.report.cells import Cells
from tsdfm.report.desk import spoken
from tsdfm.report.rows import marked
from tsdfm.report.runs import run_at
from tsdfm.report.settings import FrontierSettings, MeasureSettings
from tsdfm.report.summary import every_row, texts_of
from tsdfm.store.bundle import on_disk
from tsdfm.store.files import write_json
from tsdfm.store.manifest import write_manifest


def run(settings: MeasureSettings, models: Sequence[Path], tokens: Path, out: Path, *, verbose: bool = False) -> Path:
    """Measure every model and write `metrics.json` (and `frontier.json` if asked) into `out`.

    Prints a line a model; with `verbose` a line a cell, a text of each, and every table.
    """
    console, bench, rows = Console(stderr=True), Bench(settings, Cells(out / "cells")), []
    for path in models:
        model = run_at(path)
        for steps in settings.steps_of(model):
            rows.append(bench.row(model, bench.cell(model, steps)))
            if verbose:
                console.print(spoken(rows[-1]), highlight=False, soft_wrap=True)
        if not verbose:
            console.print(f"{model.name}: {', '.join(map(str, settings.steps_of(model)))} steps", highlight=False)
    rows = marked([*rows, bench.target(tokens)])
    write_json(out / "metrics.json", [row.plain() for row in rows])
    names = [str(path) if [p.name for p in models].count(path.name) > 1 else path.name for path in models]
    inputs = {name: on_disk(path, name, "student") for name, path in zip(names, models, strict=True)}
    write_manifest(out, stage="report", settings=settings, inputs={"tokens": tokens, **inputs})
    if verbose:
        for line in texts_of(rows, len(rows)):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        every_row(rows).show()
    if settings.frontier:
        sweep(settings, models, tokens, out, verbose)
    return out


def sweep(settings: MeasureSettings, models: Sequence[Path], tokens: Path, out: Path, verbose: bool) -> None:
    """The frontier of the same models, by the same judges."""
    from tsdfm.report.sweeps import frontier

    frontier(
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
            verbose=verbose,
        ),
        beside=True,
    )
