"""Energy against t with its spread, as an SVG: no plotting library is needed to look at a compass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsdfm.charts import Axis, Chart, Point, Series, figure


def energy_chart(found: Mapping[str, Any]) -> Chart:
    """The mean energy of each time bin at the bin's middle, in a band of one standard deviation to either side."""
    points = [
        Point(x=(b["from"] + b["to"]) / 2, y=b["mean"], low=b["mean"] - std, high=b["mean"] + std)
        for b, std in ((b, b.get("std") or 0.0) for b in found["bins"] if b["mean"] is not None)
    ]
    return Chart(
        title=f"energy against time, {found['source']} source",
        caption=f"{found['source']} source",
        x=Axis(label="time t", low=0, high=1),
        y=Axis(label="energy"),
        series=[Series(name="energy of held-out states", style=3, points=points, band=True)],
    )


def energy_figure(found: Mapping[str, Any]) -> str:
    """The chart as a file of its own."""
    title = f"Energy against time, {found['source']} source"
    return figure([[energy_chart(found)]], title, "mean ± one standard deviation")
