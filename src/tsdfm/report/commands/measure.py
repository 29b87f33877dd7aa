"""`tsdfm report measure`: sample and judge runs, and write `metrics.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.measure import run as measure_all
from tsdfm.report.settings import MeasureRunsSettings


def run(settings: MeasureRunsSettings) -> Path:
    """Measure every model that is found; returns the report's folder."""
    desk = Desk("measure", settings)
    desk.need_model()
    measured = replace(
        desk.measure,
        steps=settings.steps,
        teacher_steps=settings.teacher_steps,
        show=settings.show,
        frontier=settings.frontier,
    )
    return measure_all(
        measured, [model.path for model in desk.found.models], desk.found.tokens_or_refuse(), desk.report
    )
