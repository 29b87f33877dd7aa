"""The frontier's figure: valid XML, all points inside, distinct marks, hostile names."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from tsdfm.report.frontier_figure import LEFT, PANEL_H, PANEL_W, frontier_figure, log_ticks, mark

SVG = "{http://www.w3.org/2000/svg}"


def found(methods: list[str]) -> dict[str, Any]:
    points = [
        {
            "method": m, "source": s, "steps": n, "temperature": t, "ppl": 10 * (i + 1) * t, "ppl_geometric": 5.0 * t,
            "entropy_bits": 6 + t + i / 10, "bigram_entropy_bits": 9 + t,
        }
        for i, m in enumerate(methods)
        for s in ("uniform", "mask")
        for n in (4, 8)
        for t in (0.7, 1.0, 1.1)
    ]  # fmt: skip
    return {"points": points, "target": {"ppl": 9.0, "ppl_geometric": 4.0, "entropy_bits": 7.2}}


def test_it_is_valid_and_everything_lies_inside() -> None:
    root = ElementTree.fromstring(frontier_figure(found(["a", "b"]), "entropy_bits", "entropy"))
    assert root.get("viewBox") == f"0 0 {2 * PANEL_W} {52 + 2 * PANEL_H + 34}"
    panels = root.findall(f"{SVG}g")
    assert len(panels) == 4
    for panel in panels:
        assert len(panel.findall(f"{SVG}polyline")) == 2
        for line in panel.findall(f"{SVG}polyline"):
            for x, y in (p.split(",") for p in (line.get("points") or "").split()):
                assert LEFT <= float(x) <= PANEL_W
                assert 0 <= float(y) <= PANEL_H
        stars = [p for p in panel.findall(f"{SVG}path") if p.get("class") == "real"]
        assert len(stars) == 1


def test_marks_and_dashes_tell_methods_apart_and_temperature_one_is_filled() -> None:
    shapes = {re.sub(r"[-\d.]+", "", mark(i, 50.0, 50.0)) + mark(i, 50.0, 50.0) for i in range(6)}
    assert len(shapes) == 6
    root = ElementTree.fromstring(frontier_figure(found(["a", "b", "c"]), "entropy_bits", "entropy"))
    panel = root.findall(f"{SVG}g")[0]
    assert len({line.get("stroke-dasharray") for line in panel.findall(f"{SVG}polyline")}) == 3
    filled = [p for p in panel.findall(f"{SVG}path") if p.get("class") != "real" and p.get("fill") != "#fff"]
    assert len(filled) == 3


def test_names_cannot_break_out_and_a_missing_target_is_no_star() -> None:
    made = {**found(['</text><script>alert("x")</script>']), "target": None}
    text = frontier_figure(made, "entropy_bits", "entropy <b>")
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    assert not [p for panel in root.findall(f"{SVG}g") for p in panel.findall(f"{SVG}path") if p.get("class") == "real"]


def test_another_definition_is_drawn_when_asked() -> None:
    made = found(["a"])
    assert frontier_figure(made, "entropy_bits", "e") != frontier_figure(made, "entropy_bits", "e", "ppl_geometric")


def test_log_ticks_are_few_and_inside() -> None:
    for low, high in ((2.1, 3.4), (1.0, 1000.0), (56.0, 61.0), (0.5, 900_000.0)):
        ticks = log_ticks(low, high)
        assert 2 <= len(ticks) <= 9
        assert all(low <= t <= high for t in ticks)
