"""Charts as SVG, without a plotting library: the report's page, its figures and the compass's curve are drawn here.

    Chart(title="…", x=Axis(label="steps", scale="log2"), y=Axis(label="perplexity", scale="log"),
          series=[Series(name="teacher", style=0, points=[Point(x=4, y=9.1, low=8.7, high=9.6)])])

Methods differ by the shape of their marks and by dashes, not by colour alone. A mark's title tells its numbers. Inside
the page its style sheet gives the colours; `figure` makes a file of its own, with a legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tsdfm.terminal import markup

Scale = Literal["linear", "log", "log2"]
Spot = tuple[float, float]
Line = tuple[Spot, Spot]
Anchor = tuple[float, float, str]  # where a label stands, and which end of it: start, middle or end
Place = Callable[[float], float]

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, BOTTOM = 46, 12, 40
HEAD, FOOT = 48, 30  # of a figure: title and hint above, legend below
LEGEND = 900  # how wide a line of the legend may be
DASHES = ("", "7 4", "2 3", "", "9 3 2 3", "4 2", "1 4", "12 3")
COLOURS = ("#475872", "#b04c06", "#7a479f", "#0a6b66", "#a82a63", "#1f5fa6", "#55731a", "#865423")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #59616d; } .title { font-size: 15px; font-weight: 600; fill: #1c2027; }
.panel, .name { fill: #1c2027; } .panel { font-weight: 600; } .axis { stroke: #59616d; } .rule { stroke: #d8dbe0; }
.ref { stroke: #1c2027; stroke-dasharray: 1 3; } .reflabel { fill: #1c2027; font-style: italic; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.75; } .whisker { stroke: currentColor; opacity: .75; }
.band { fill: currentColor; opacity: .16; } .dot { fill: currentColor; } .hollow { fill: #fff; stroke: currentColor; }
.target { fill: none; stroke: #1c2027; stroke-width: 1.5; } .bull { fill: #1c2027; }
"""
SHAPES: tuple[tuple[Spot, ...], ...] = (
    (),  # a circle
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((-1.1, -0.85), (1.1, -0.85), (0, 1.15)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((-1.1, 0.85), (1.1, 0.85), (0, -1.15)),
    ((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4),
     (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
    ((-1.2, -0.7), (-0.7, -1.2), (0, -0.5), (0.7, -1.2), (1.2, -0.7), (0.5, 0), (1.2, 0.7), (0.7, 1.2), (0, 0.5),
     (-0.7, 1.2), (-1.2, 0.7), (-0.5, 0)),
    ((0, -1.4), (0.4, -0.4), (1.4, -0.3), (0.6, 0.35), (0.9, 1.3), (0, 0.75), (-0.9, 1.3), (-0.6, 0.35), (-1.4, -0.3),
     (-0.4, -0.4)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value with its interval, if it has one; `hollow` ones are told apart, and `note` says why."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve; `style` is its colour, dash and mark; intervals are whiskers, or with `band` a band.

    From style 8 on the colours come again with other dashes and marks, so that 64 curves can be told apart.
    """

    name: str
    style: int
    points: Sequence[Point]
    band: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows; `low` and `high` are found from the values where they are not given."""

    label: str
    scale: Scale = "linear"
    percent: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over two axes. `refs` are lines across, `marks` single points with a name; `dots` off marks few points."""

    title: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    refs: Sequence[tuple[float, str]] = ()
    marks: Sequence[tuple[float, float, str]] = ()
    dots: bool = True
    size: tuple[int, int] = (WIDTH, HEIGHT)


def svg(chart: Chart) -> str:
    """A chart as an `<svg>` for the page."""
    names = markup(f"{chart.title}: {', '.join(one.name for one in chart.series)}")
    inside, (wide, high) = "".join(panel(chart)), chart.size
    return f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{names}">{inside}</svg>'


def figure(rows: Sequence[Sequence[Chart]], title: str, hint: str = "") -> str:
    """Charts in rows as a file of their own, with their captions and one legend."""
    styles = {one.name: one.style for row in rows for chart in row for one in chart.series}
    legend, x, widest = list[str](), float(LEFT), 0.0
    cell = [max((chart.size[i] for row in rows for chart in row), default=(WIDTH, HEIGHT)[i]) for i in (0, 1)]
    high = HEAD + len(rows) * (cell[1] + 24) + FOOT
    for name, style in styles.items():
        long = 30 + 7.5 * len(name)
        if x > LEFT and x + long > LEGEND:
            widest, x, high = max(widest, x), float(LEFT), high + 18
        legend.append(f'<g class="s{style % 8}">{mark(style, x, high - 16)}</g>')
        legend.append(f'<text class="name" x="{x + 10:.1f}" y="{high - 12}">{markup(name)}</text>')
        x += long
    across = max((len(row) for row in rows), default=1) * cell[0]
    wide = max(across, widest, x, LEFT + 9 * len(title), LEFT + 7 * len(hint))
    colours = " ".join(f".s{i} {{ color: {colour}; }}" for i, colour in enumerate(COLOURS))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img" '
        f'aria-label="{markup(title)}">',
        f'<style>{STYLE}{colours}</style><rect width="{wide:.0f}" height="{high}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="20">{markup(title)}</text><text x="{LEFT}" y="38">{markup(hint)}</text>',
    ]
    for down, row in enumerate(rows):
        for right, chart in enumerate(row):
            place = f"translate({right * cell[0]} {HEAD + down * (cell[1] + 24) + 24})"
            head = f'<text class="panel" x="{LEFT}" y="-4">{markup(chart.caption)}</text>'
            out += [f'<g class="chart" transform="{place}">', head, *panel(chart), "</g>"]
    return "\n".join([*out, *legend, "</svg>"]) + "\n"


class Scaled:
    """An axis over some values: `to` gives a value's place, 0 to 1, and `ticks` are round numbers on it.

    `room` is left at either end, as a share of what the values span.
    """

    def __init__(self, axis: Axis, values: Iterable[float], room: float = 0.06) -> None:
        known = sorted(set(values))
        low, high = axis.low if axis.low is not None else known[0], axis.high if axis.high is not None else known[-1]
        log = axis.scale != "linear"
        if axis.percent:
            low, high = 0.0, min(1.0, known[-1] * 1.08)
        if math.isclose(low, high):  # or so near that their logarithms are equal
            low, high = (low / 1.5, high * 1.5) if log else (low - 0.5, high + 0.5)
        self._bend = math.log if log else float
        if axis.low is None and not axis.percent:
            more = (self._bend(high) - self._bend(low)) * room
            low, high = (low / math.exp(more), high * math.exp(more)) if log else (low - more, high + more)
        self._low, self._span = self._bend(low), self._bend(high) - self._bend(low)
        self.ticks = known if axis.scale == "log2" else log_ticks(low, high) if log else ticks(low, high)

    def to(self, value: float) -> float:
        return (self._bend(value) - self._low) / self._span


def panel(chart: Chart) -> list[str]:
    """The inside of a chart."""
    top = 10 if chart.y.label == chart.caption else 26
    width, height = chart.size
    log = chart.y.scale != "linear"
    every = [p for one in chart.series for p in one.points if not log or p.y > 0]
    ends = [e for p in every for e in (p.y, p.low, p.high) if e is not None and (not log or e > 0)]
    across = Scaled(chart.x, [p.x for p in every] + [x for x, _, _ in chart.marks])
    room = 0.11 if chart.refs else 0.06  # a line at the edge has room for its name beyond it
    up = Scaled(chart.y, ends + [y for y, _ in chart.refs] + [y for _, y, _ in chart.marks], room)

    def place(x: float, y: float) -> Spot:
        at = LEFT + across.to(x) * (width - LEFT - RIGHT)
        return at, height - BOTTOM - up.to(y) * (height - top - BOTTOM)

    out = [f'<text class="unit" x="0" y="10">{markup(chart.y.label)}</text>'] if top > 10 else []
    first = across.ticks[0]
    for value in up.ticks:
        y = place(first, value)[1]
        out.append(f'<line class="rule" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{pretty(value, chart.y.percent)}</text>')
    floor, last = height - BOTTOM, -99.0
    out.append(f'<line class="axis" x1="{LEFT}" x2="{width - RIGHT}" y1="{floor}" y2="{floor}"/>')
    for value in across.ticks:
        x = place(value, up.ticks[0])[0]
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        if x - last >= 26:
            out.append(f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{pretty(value)}</text>')
            last = x
    middle = (LEFT + width - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{height - 5}" text-anchor="middle">{markup(chart.x.label)}</text>')
    taken = list[Line]()  # what labels stay clear of
    for value, _ in chart.refs:
        y = place(first, value)[1]
        taken.append(((LEFT, y), (width - RIGHT, y)))
        out.append(f'<line class="ref" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for index, one in enumerate(chart.series):
        apart = (index - (len(chart.series) - 1) / 2) * 3.5 if chart.x.scale == "log2" else 0.0
        spots = [(place(p.x, p.y)[0] + apart, place(p.x, p.y)[1], p) for p in one.points if not log or p.y > 0]
        taken += [((x, y), (u, v)) for (x, y, _), (u, v, _) in pairwise(spots)]
        taken += [line for x, y, _ in spots for line in cross(x, y, 5)]
        known = [(x, p.low, p.high) for x, _, p in spots if p.low is not None and p.high is not None]
        taken += [((x, place(first, a)[1]), (x, place(first, b)[1])) for x, a, b in known if not log or a > 0]
        out += curve(chart, one, spots, lambda y: place(first, y)[1], log)
    for mx, my, _ in chart.marks:
        x, y = place(mx, my)
        taken += cross(x, y, 7)
        out.append(f'<circle class="target" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
        out.append(f'<circle class="bull" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    for value, label in chart.refs:
        out.append(clear(label, along(place(first, value)[1], width), taken, top, chart.size))
    for mx, my, label in chart.marks:
        out.append(clear(label, around(*place(mx, my), width), taken, top, chart.size))
    return out


def curve(chart: Chart, one: Series, spots: Sequence[tuple[float, float, Point]], py: Place, log: bool) -> list[str]:
    """One series: band or whiskers, line, marks. Series that share x stand a little apart, so that none is hidden."""
    out = [f'<g class="s{one.style % 8}">']
    ends = [
        (x, p.low, p.high) for x, _, p in spots if p.low is not None and p.high is not None and (not log or p.low > 0)
    ]
    if one.band:
        edge = [(x, py(high)) for x, _, high in ends] + [(x, py(low)) for x, low, _ in reversed(ends)]
        out.append(f'<polygon class="band" points="{joined(edge)}"/>')
    else:
        out += [
            f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{py(low):.1f}" y2="{py(high):.1f}"/>'
            for x, low, high in ends
        ]
    dash = f' stroke-dasharray="{DASHES[turned(one.style)]}"' if DASHES[turned(one.style)] else ""
    out.append(f'<polyline class="curve"{dash} points="{joined((x, y) for x, y, _ in spots)}"/>')
    every = max(1, math.ceil(len(spots) / (16 if chart.dots else 5)))
    for i, (x, y, p) in enumerate(spots):
        if i % every == every - 1 or len(spots) < 9 or i == len(spots) - 1:
            out.append(mark(one.style, x, y, hollow=p.hollow, said=spoken(chart, one, p)))
    return [*out, "</g>"]


def spoken(chart: Chart, one: Series, p: Point) -> str:
    """A point's numbers in words."""
    ends = f" ({pretty(p.low, chart.y.percent)} to {pretty(p.high, chart.y.percent)})" if p.low and p.high else ""
    at = f"{one.name}: {pretty(p.y, chart.y.percent)}{ends}, {chart.x.label} {pretty(p.x)}"
    return f"{at}, {p.note}" if p.note else at


def turned(style: int) -> int:
    """Which dash and mark a style has: its own up to 7, then one further for every round of the colours."""
    return (style + style // 8) % 8


def mark(style: int, x: float, y: float, r: float = 4.0, *, hollow: bool = False, said: str = "") -> str:
    """The mark of a style: shapes differ, so colours need not."""
    name, title = "hollow" if hollow else "dot", f"<title>{markup(said)}</title>" if said else ""
    shape = SHAPES[turned(style)]
    if not shape:
        return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}">{title}</circle>'
    way = "L".join(f"{x + a * r:.2f} {y + b * r:.2f}" for a, b in shape)
    return f'<path class="{name}" d="M{way}Z">{title}</path>'


def sample(style: int) -> str:
    """A short line with its mark, for a legend."""
    dash = f' stroke-dasharray="{DASHES[turned(style)]}"' if DASHES[turned(style)] else ""
    line = f'<line class="curve" x1="0" x2="34" y1="6" y2="6"{dash}/>'
    return f'<svg viewBox="0 0 34 12" class="s{style % 8}" aria-hidden="true">{line}{mark(style, 17, 6)}</svg>'


def cross(x: float, y: float, r: float) -> list[Line]:
    """A mark as two lines."""
    return [((x - r, y), (x + r, y)), ((x, y - r), (x, y + r))]


def along(y: float, width: int) -> list[Anchor]:
    """Where the name of a line across may stand: above or below it, at its ends before anywhere between."""
    ends = [(LEFT + 4.0, "start"), (width - RIGHT - 4.0, "end")]
    between = [(LEFT + i * (width - LEFT - RIGHT) / 12, "middle") for i in range(2, 11)]
    return [(x, base, anchor) for x, anchor in ends + between for base in (y - 5, y + 14)]


def around(x: float, y: float, width: int) -> list[Anchor]:
    """Where the name of a single point may stand: beside it, towards the middle first, above it, or below it."""
    beside = [(x + 11, y + 4, "start"), (x - 11, y + 4, "end")]
    return [*(beside[::-1] if x > width / 2 else beside), (x, y - 12, "middle"), (x, y + 20, "middle")]


def clear(label: str, places: Sequence[Anchor], taken: list[Line], top: float, size: tuple[int, int]) -> str:
    """A label at the first of its places in a chart that the fewest lines cross; others then keep clear of it."""
    wide = 6.6 * len(label)

    def box(place: Anchor) -> Line:
        left = place[0] - wide * ("start", "middle", "end").index(place[2]) / 2
        return (left - 2, place[1] - 11), (left + wide + 2, place[1] + 4)

    def crowd(place: Anchor) -> int:
        (left, _), (right, _) = box(place)
        out = left < LEFT or right > size[0] or not top + 4 <= place[1] <= size[1] - BOTTOM - 2
        return 99 * out + sum(meet(box(place), line) for line in taken)

    x, y, anchor = best = min(places, key=crowd)
    (left, high), (right, low) = box(best)
    taken += [((left, level), (right, level)) for level in (high, y - 4, low)]
    return f'<text class="reflabel" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{markup(label)}</text>'


def meet(box: Line, line: Line) -> bool:
    """Does a line pass through a box, given by two corners?"""
    enter, leave = 0.0, 1.0
    for axis in (0, 1):
        start, move = line[0][axis], line[1][axis] - line[0][axis]
        if move == 0:
            if not box[0][axis] <= start <= box[1][axis]:
                return False
            continue
        ends = sorted(((box[0][axis] - start) / move, (box[1][axis] - start) / move))
        enter, leave = max(enter, ends[0]), min(leave, ends[1])
    return enter <= leave


def joined(points: Iterable[Spot]) -> str:
    """Points as SVG writes them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from low to high, in steps of 1, 2 or 5."""
    rough = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(k * size for k in (1, 2, 5, 10) if k * size >= 0.999 * rough)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """A few round numbers from low to high for a logarithmic axis; finer ones where the range is narrow."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        found = [float(f"{lead * 10.0**d:.6g}") for d in decades for lead in leads]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            return found if len(found) <= 8 else found[:: math.ceil(len(found) / 6)]
    return [tick for tick in ticks(low, high, 4) if tick > 0]


def pretty(value: float | None, percent: bool = False) -> str:
    """A number with about three digits that matter."""
    if value is None:
        return ""
    if percent:
        return f"{round(100 * value, 1):g}\u202f%"
    size = abs(value)
    if size >= 1e6:
        text = f"{value:.1e}"
    elif size >= 100 or value == int(value):
        text = f"{value:,.0f}".replace(",", "\u202f")
    else:
        text = f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 4}f}".rstrip("0").rstrip(".")
    return text.replace("-", "\u2212")
