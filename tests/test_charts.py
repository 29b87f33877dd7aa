"""Charts: valid XML, every point inside, marks that differ, names that cannot break out, round ticks."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tsdfm.charts import HEIGHT, WIDTH, Axis, Chart, Point, Series, figure, log_ticks, mark, pretty, svg, ticks

SVG = "{http://www.w3.org/2000/svg}"


def chart(names: list[str], **given: object) -> Chart:
    series = [
        Series(
            name=name, style=i % 8, points=[Point(x=2.0**k, y=10.0 * (i + k), low=8.0, high=90.0) for k in (1, 2, 3)]
        )
        for i, name in enumerate(names)
    ]
    known = {"x": Axis(label="x", scale="log2"), "y": Axis(label="y", scale="log"), "refs": [(9.0, "line")]}
    return Chart(title="t", caption="c", series=series, marks=[(3.0, 20.0, "mark")], **{**known, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_it_is_valid_and_everything_lies_inside(scale: str) -> None:
    made = chart(["a", "b"], y=Axis(label="y", scale=scale))  # type: ignore[arg-type]
    root = ElementTree.fromstring(figure([[made, made], [made]], "title <&>", "hint"))
    panels = [g for g in root.findall(f"{SVG}g") if g.get("class") == "chart"]
    assert len(panels) == 3
    for panel in panels:
        lines = list(panel.iter(f"{SVG}polyline"))
        assert len(lines) == 2
        for x, y in (p.split(",") for line in lines for p in (line.get("points") or "").split()):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
    assert root.find(f"{SVG}text").text == "title <&>"  # type: ignore[union-attr]


def test_marks_and_dashes_tell_methods_apart_and_hollow_ones_are_told() -> None:
    assert len({mark(i, 50.0, 50.0) for i in range(8)}) == 8
    text = svg(chart(["a", "b", "c"]))
    assert len(set(re.findall(r'<polyline class="curve"( stroke-dasharray="[^"]+")?', text))) == 3
    one = Series(name="m", style=0, points=[Point(x=1, y=1), Point(x=2, y=2, hollow=True, note="T = 0.7")])
    text = svg(Chart(title="t", caption="c", x=Axis(label="x"), y=Axis(label="y"), series=[one]))
    assert (text.count('class="dot"'), text.count('class="hollow"')) == (1, 1)
    assert "<title>m: 2, x 2, T = 0.7</title>" in text


def test_names_cannot_break_out() -> None:
    hostile = '</text><script>alert("x")</script>'
    text = figure([[chart([hostile])]], hostile, hostile)
    assert "<script" not in text
    ElementTree.fromstring(text)


def test_ticks_are_few_round_and_inside() -> None:
    for low, high in ((2.1, 3.4), (1.0, 1000.0), (56.0, 61.0), (0.5, 900_000.0)):
        for found in (log_ticks(low, high), ticks(low, high)):
            assert 2 <= len(found) <= 9
            assert all(low <= tick <= high for tick in found)
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert [pretty(x) for x in (0.25, 12.5, 1234.0, -3.0, 2e6)] == ["0.25", "12.5", "1\u202f234", "\u22123", "2.0e+06"]
    assert pretty(0.125, percent=True) == "12.5\u202f%"
