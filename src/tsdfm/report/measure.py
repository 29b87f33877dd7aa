"""The measuring stage: sample models at several step counts, judge the texts, and lay held-out text beside them.

    run(MeasureSettings(samples=64), [Path("runs/demo/teacher-uniform")], Path("runs/demo/tokens"), Path("report"))

writes `metrics.json`, a list of rows, and keeps every cell, so that a measurement that was broken off goes on where it
was, and the commands of `tsdfm report` find what has been sampled. Under torchrun the processes share the cells:

    torchrun --nproc-per-node 8 -m tsdfm report measure runs/mine
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tsdfm import terminal
from tsdfm.engine.distributed import Processes, join
from tsdfm.report.bench import Bench
from tsdfm.report.cells import Cells
from tsdfm.report.desk import Desk, spoken
from tsdfm.report.desk import run as make_table
from tsdfm.report.rows import rows_in, told_apart
from tsdfm.report.runs import apart, run_at
from tsdfm.report.settings import FrontierSettings, MeasureRunsSettings, MeasureSettings
from tsdfm.report.summary import by_steps, every_row, texts_of
from tsdfm.store.bundle import on_disk
from tsdfm.store.files import write_json
from tsdfm.store.manifest import check_place, write_manifest
from tsdfm.tokens.rows import TokenRows


def command(settings: MeasureRunsSettings) -> Path:
    """`tsdfm report measure`: measure every model that is found; returns the path of `metrics.json`."""
    desk = Desk("measure", settings, modelled=True)
    named = {name: getattr(settings, name) for name in ("steps", "teacher_steps", "show", "frontier")}
    asked, models = replace(desk.asked, **named), [model.place for model in desk.runs.models]
    tokens = desk.runs.tokens_or_refuse()
    TokenRows(tokens, "valid")  # which refuses a folder without held-out text before anything is sampled
    with join(settings.device) as peers:
        if peers.size > 1:  # each process samples its part, and the first finds all of it
            peers.together(lambda: share(replace(asked, device=str(peers.device)), models, desk.report, peers))
        else:
            desk.judge_names()  # one that cannot be loaded is told of before anything is sampled
        peers.on_main(lambda: told(desk, run(asked, models, tokens, desk.report, verbose=settings.verbose)))
    return desk.report / "metrics.json"


def share(settings: MeasureSettings, models: Sequence[Path], out: Path, peers: Processes) -> None:
    """Sample and judge this process's part of the cells."""
    runs, bench = [run_at(path) for path in models], Bench(settings, Cells(out / "cells"))
    for i, steps in deal([settings.steps_of(one) for one in runs], peers.size)[peers.rank]:
        bench.judged(bench.cell(runs[i], steps))


def deal(steps: Sequence[Sequence[int]], hands: int) -> list[list[tuple[int, int]]]:
    """The step counts of each model dealt into `hands` parts of (model, steps), model by model in each.

    The longest are dealt first, each to who has least to do; a pass of any model counts alike.

    >>> deal([(8, 256), (8, 16)], 2)
    [[(0, 256)], [(0, 8), (1, 8), (1, 16)]]
    """
    parts: list[list[tuple[int, int]]] = [[] for _ in range(hands)]
    cells = [(i, count) for i, counts in enumerate(steps) for count in counts]
    for cell in sorted(cells, key=lambda cell: -cell[1]):
        min(parts, key=lambda part: sum(count for _, count in part)).append(cell)
    return [sorted(part) for part in parts]


def told(desk: Desk, out: Path) -> None:
    """Say what was measured."""
    rows = rows_in(out / "metrics.json")
    if not desk.settings.verbose:
        by_steps(rows).show()
    count = f"{sum(row.steps is not None for row in rows)} cells of {desk.asked.samples} texts, and held-out text"
    terminal.made("report measure", count, out / "metrics.json", *desk.then())


def run(settings: MeasureSettings, models: Sequence[Path], tokens: Path, out: Path, *, verbose: bool = False) -> Path:
    """Measure every model and write `metrics.json` (and `frontier.json` if asked) into `out`.

    Prints a line a model; with `verbose` a line a cell, a text of each, and every table.
    """
    check_place(out, "report")
    bench, rows, runs = Bench(settings, Cells(out / "cells")), [], [run_at(path) for path in models]
    for model in runs:
        for steps in settings.steps_of(model):
            row = bench.row(model, bench.cell(model, steps))
            rows.append(replace(row, run=apart(model, runs)))
            if verbose:
                terminal.say(spoken(rows[-1]))
        if not verbose:
            terminal.say(f"{model.name}: {', '.join(map(str, settings.steps_of(model)))} steps")
    target = bench.target(tokens)
    rows = [row.against(target) for row in (*rows, target)]
    write_json(out / "metrics.json", [row.plain() for row in rows])
    names = [str(path) if [p.name for p in models].count(path.name) > 1 else path.name for path in models]
    inputs = {name: on_disk(model.path, name, "student") for name, model in zip(names, runs, strict=True)}
    write_manifest(out, stage="report", settings=settings, inputs={"tokens": tokens, **inputs})
    if verbose:
        rows = told_apart(rows)
        for line in texts_of(rows, len(rows)):
            terminal.say(line)
        every_row(rows).show()
    if settings.frontier:
        shared = ("samples", "seed", "top_p", "jump", "judges", "device", "temperatures", "control", "definition")
        asked = {name: getattr(settings, name) for name in shared} | {"world": settings.world or "", "out": out}
        asked |= {"steps": settings.frontier_steps or settings.steps, "verbose": verbose}
        make_table(FrontierSettings(runs=tuple(models), tokens=tokens, **asked), beside=True)
    return out
