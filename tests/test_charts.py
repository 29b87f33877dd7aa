"""Charts: valid XML, every point inside, marks that differ, names that cannot break out, round ticks."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tsdfm.charts import HEIGHT, WIDTH, Axis, Chart, Point, Series, figure, log_ticks, mark, meet, pretty, svg, ticks

SVG = "{http://www.w3.org/2000/svg}"


def chart(names: list[str], **given: object) -> Chart:
    series = [
        Series(
            name=name, style=i % 8, points=[Point(x=2.0**k, y=10.0 * (i + k), low=8.0, high=90.0) for k in (1, 2, 3)]
        )
        for i, name in enumerate(names)
    ]
    known = {"x": Axis(label="x", scale="log2"), "y": Axis(label="y", scale="log"), "refs": [(9.0, "line")]}
    known |= {"series": series, "marks": [(3.0, 20.0, "mark")]}
    return Chart(title="t", caption="c", **{**known, **given})  # type: ignore[arg-type]


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


def boxes(picture: str) -> list[tuple[float, float, float, float]]:
    """Where the letters of each label lie: left, top, right, bottom; a letter is about 6 wide and 9 high."""
    out = []
    for text in ElementTree.fromstring(picture).iter(f"{SVG}text"):
        if text.get("class") == "reflabel":
            wide, x, y = 6.0 * len(text.text or ""), float(text.get("x") or 0), float(text.get("y") or 0)
            left = x - wide * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor") or "start"]
            out.append((left, y - 9, left + wide, y + 2))
    return out


def drawn(picture: str) -> list[tuple[float, float]]:
    """Points along every curve and whisker, half a pixel apart."""
    lines = []
    for line in ElementTree.fromstring(picture).iter(f"{SVG}polyline"):
        spots = [tuple(map(float, spot.split(","))) for spot in (line.get("points") or "").split()]
        lines += list(pairwise(spots))
    for line in ElementTree.fromstring(picture).iter(f"{SVG}line"):
        if line.get("class") in ("whisker", "ref"):
            x1, y1, x2, y2 = (float(line.get(name) or 0) for name in ("x1", "y1", "x2", "y2"))
            lines.append(((x1, y1), (x2, y2)))
    return [(a + (c - a) * i / 800, b + (d - b) * i / 800) for (a, b), (c, d) in lines for i in range(801)]


FALLING = [(4, 125.0), (8, 3.0), (16, 2.2), (32, 1.95), (256, 2.05)]  # towards the line, and then along it
RISING = [(4, 1.7), (8, 1.9), (16, 2.0), (32, 2.1), (256, 125.0)]


@pytest.mark.parametrize("values", [FALLING, RISING, FALLING + RISING])
def test_the_name_of_a_line_stands_clear_of_curves_and_whiskers(values: list[tuple[int, float]]) -> None:
    points = [Point(x=x, y=y, low=0.9 * y, high=1.2 * y) for x, y in sorted(values)]
    axes = {"x": Axis(label="passes", scale="log2"), "y": Axis(label="perplexity", scale="log")}
    one = Series(name="m", style=0, points=points)
    made = Chart(title="t", caption="perplexity", series=[one], refs=[(1.65, "held-out text")], **axes)  # type: ignore[arg-type]
    picture = svg(made).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    ((left, top, right, bottom),) = boxes(picture)
    assert 0 <= left < right <= WIDTH
    assert 0 <= top < bottom <= HEIGHT
    assert not [(x, y) for x, y in drawn(picture) if left <= x <= right and top <= y <= bottom]


def test_the_name_of_a_point_stands_clear_of_a_curve_beside_it() -> None:
    one = Series(name="m", style=0, points=[Point(x=0, y=4), Point(x=2.4, y=2), Point(x=5, y=2.02)])
    made = Chart(
        title="t", caption="c", x=Axis(label="x"), y=Axis(label="y"), series=[one], marks=[(2, 2, "held-out text")]
    )
    picture = svg(made).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    ((left, top, right, bottom),) = boxes(picture)
    assert not [(x, y) for x, y in drawn(picture) if left <= x <= right and top <= y <= bottom]


@pytest.mark.parametrize(
    ("line", "crosses"),
    [
        (((0, 15), (30, 15)), True),  # through
        (((12, 12), (13, 18)), True),  # inside
        (((0, 0), (9, 30)), False),  # past its left
        (((0, 20), (12, 0)), False),  # past a corner
        (((15, 0), (15, 9)), False),  # ends above
    ],
)
def test_a_line_and_a_box(line: tuple[tuple[float, float], tuple[float, float]], crosses: bool) -> None:
    assert meet(((10, 10), (20, 20)), line) is crosses


def test_marks_and_dashes_tell_methods_apart_and_hollow_ones_are_told() -> None:
    assert len({mark(i, 50.0, 50.0) for i in range(8)}) == 8
    text = svg(chart(["a", "b", "c"]))
    assert len(set(re.findall(r'<polyline class="curve"( stroke-dasharray="[^"]+")?', text))) == 3
    one = Series(name="m", style=0, points=[Point(x=1, y=1), Point(x=2, y=2, hollow=True, note="T = 0.7")])
    text = svg(Chart(title="t", caption="c", x=Axis(label="x"), y=Axis(label="y"), series=[one]))
    assert (text.count('class="dot"'), text.count('class="hollow"')) == (1, 1)
    assert "<title>m: 2, x 2, T = 0.7</title>" in text


def test_values_that_differ_in_their_last_digit_have_a_place() -> None:
    """Their logarithms are equal: two models whose perplexity is the judge's highest, say."""
    near = [Point(x=2.0, y=97000.0), Point(x=4.0, y=math.nextafter(97000.0, math.inf))]
    made = chart([], series=[Series(name="a", style=0, points=near)], refs=[], marks=[])
    drawn = ElementTree.fromstring(figure([[made]], "title", "hint"))
    (line,) = drawn.iter(f"{SVG}polyline")
    assert all(0 <= float(end) <= HEIGHT for end in re.findall(r",([\d.]+)", line.get("points") or ""))


def test_names_cannot_break_out() -> None:
    hostile = '</text><script>alert("x")</script>\x1b[2J\0'
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
