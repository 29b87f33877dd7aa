"""`tsdfm report measure`: sample and judge runs, and write `metrics.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm import terminal
from tsdfm.report.desk import Desk
from tsdfm.report.measure import run as measure_all
from tsdfm.report.settings import MeasureRunsSettings
from tsdfm.report.summary import by_steps, read_rows


def run(settings: MeasureRunsSettings) -> Path:
    """Measure every model that is found; returns the path of `metrics.json`."""
    desk = Desk("measure", settings, modelled=True)
    asked = {name: getattr(settings, name) for name in ("steps", "teacher_steps", "show", "frontier")}
    models, tokens = [model.path for model in desk.runs.models], desk.runs.tokens_or_refuse()
    out = measure_all(replace(desk.measure, **asked), models, tokens, desk.report, verbose=settings.verbose)
    rows = read_rows(out)
    if not settings.verbose:
        by_steps(rows).show()
    told = f"{sum(row.steps is not None for row in rows)} cells of {desk.measure.samples} texts, and held-out text"
    terminal.made("report measure", told, out / "metrics.json", *desk.then())
    return out / "metrics.json"
