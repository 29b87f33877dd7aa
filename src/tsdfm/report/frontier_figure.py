"""Perplexity against entropy as an SVG written by hand: a panel for each source and step count.

Methods differ by the shape of their marks and by dashes, not by colour alone; held-out text is a star.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tsdfm.compass.figure import nice_ticks

PANEL_W, PANEL_H = 380, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 44
HEAD, FOOT = 52, 34
COLOURS = ("#3b6fb6", "#b4552d", "#3a7d44", "#7b4fa3", "#8a6d1d", "#4a4a4a")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4")
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333; }
  .title { font-size: 15px; font-weight: 600; } .panel { font-weight: 600; }
  .grid { stroke: #ddd; } .line { fill: none; stroke-width: 1.6; } .real { fill: #111; }
"""
Point = tuple[float, float]


def frontier_figure(found: Mapping[str, Any], entropy: str, label: str, ppl: str = "ppl") -> str:
    """The figure of `frontier.json`'s points; `entropy` and `ppl` name the fields on the two axes."""
    points = [{**p, "ppl": p[ppl]} for p in found["points"] if p.get(ppl) is not None and p.get(entropy) is not None]
    target = {**found["target"], "ppl": found["target"].get(ppl)} if found.get("target") else None
    panels = list(dict.fromkeys((p["source"], p["steps"]) for p in points))
    methods = list(dict.fromkeys(p["method"] for p in points))
    sources = list(dict.fromkeys(source for source, _ in panels))
    across = max((sum(1 for s, _ in panels if s == source) for source in sources), default=1)
    title = escape(f"Perplexity against {label}")
    needed = LEFT + max(9 * len(title), sum(26 + 7.5 * len(name) for name in (*methods, "held-out text")))
    width, height = max(across * PANEL_W, round(needed)), HEAD + len(sources) * PANEL_H + FOOT
    hint = "At equal entropy, lower is better. Filled marks: temperature 1."
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="22">{title}</text>',
        f'<text x="{LEFT}" y="40">{hint}</text>',
    ]
    for down, source in enumerate(sources):
        for right, steps in enumerate(s for place, s in panels if place == source):
            here = [p for p in points if (p["source"], p["steps"]) == (source, steps)]
            inner = panel(here, entropy, label, methods, target, f"{source} source, {steps} steps")
            body += [f'<g transform="translate({right * PANEL_W} {HEAD + down * PANEL_H})">', *inner, "</g>"]
    body += legend(methods, height - 12)
    return "\n".join([*body, "</svg>"]) + "\n"


def panel(
    points: Sequence[Mapping[str, Any]],
    entropy: str,
    label: str,
    methods: Sequence[str],
    target: Mapping[str, Any] | None,
    title: str,
) -> list[str]:
    """One panel: axes, a curve for each method, the star."""
    star = (target[entropy], target["ppl"]) if target and target.get("ppl") and target.get(entropy) else None
    every = [(p[entropy], p["ppl"]) for p in points] + ([star] if star else [])
    x_ticks = nice_ticks(min(x for x, _ in every), max(x for x, _ in every))
    low, high = min(y for _, y in every) / 1.08, max(y for _, y in every) * 1.08

    def place(x: float, y: float) -> Point:
        across = (x - x_ticks[0]) / ((x_ticks[-1] - x_ticks[0]) or 1.0)
        up = math.log(y / low) / math.log(high / low)
        return LEFT + across * (PANEL_W - LEFT - RIGHT), PANEL_H - BOTTOM - up * (PANEL_H - TOP - BOTTOM)

    out = [f'<text class="panel" x="{LEFT}" y="20">{escape(title)}</text>']
    for x in x_ticks:
        px, _ = place(x, low)
        out.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{PANEL_H - BOTTOM}"/>')
        out.append(f'<text x="{px:.1f}" y="{PANEL_H - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in log_ticks(low, high):
        _, py = place(x_ticks[0], y)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{PANEL_W - RIGHT}" y1="{py:.1f}" y2="{py:.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>')
    middle = (LEFT + PANEL_W - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{PANEL_H - 8}" text-anchor="middle">{escape(label)}</text>')
    centre = (TOP + PANEL_H - BOTTOM) / 2
    turn = f'transform="rotate(-90 14 {centre})"'
    out.append(f'<text x="14" y="{centre}" text-anchor="middle" {turn}>perplexity</text>')
    for index, method in enumerate(methods):
        own = sorted((p for p in points if p["method"] == method), key=lambda p: p["temperature"])
        out += line_of(index, [(*place(p[entropy], p["ppl"]), p) for p in own])
    if star:
        out.append(f'<path class="real" d="{star_path(*place(*star))}"><title>held-out text</title></path>')
    return out


def line_of(index: int, points: Sequence[tuple[float, float, Mapping[str, Any]]]) -> list[str]:
    """A method's curve with a mark for each temperature, filled at T = 1."""
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    out = [f'<polyline class="line" stroke="{colour}" stroke-dasharray="{dash}" points="{way}"/>']
    for x, y, p in points:
        fill = colour if p["temperature"] == 1.0 else "#fff"
        name = escape(f"{p['method']}, temperature {p['temperature']:g}: perplexity {p['ppl']:.3g}")
        out.append(f'<path d="{mark(index, x, y)}" fill="{fill}" stroke="{colour}"><title>{name}</title></path>')
    return out


def mark(index: int, x: float, y: float, r: float = 4.5) -> str:
    """Circle, square, triangle, diamond, cross, inverted triangle: the path of a method's mark."""
    shape = index % 6
    if shape == 0:
        return f"M{x - r:.1f},{y:.1f}a{r},{r} 0 1,0 {2 * r},0a{r},{r} 0 1,0 {-2 * r},0Z"
    third = r / 3
    arm = ((-third, -r), (third, -r), (third, -third))  # of the cross; turned by quarters it makes the rest
    corners: Sequence[Point] = (
        (),
        ((-r, -r), (r, -r), (r, r), (-r, r)),
        ((0, -1.2 * r), (1.1 * r, r), (-1.1 * r, r)),
        ((0, -1.3 * r), (1.3 * r, 0), (0, 1.3 * r), (-1.3 * r, 0)),
        (*arm, *((-b, a) for a, b in arm), *((-a, -b) for a, b in arm), *((b, -a) for a, b in arm)),
        ((0, 1.2 * r), (1.1 * r, -r), (-1.1 * r, -r)),
    )[shape]
    return "M" + "L".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners) + "Z"


def star_path(x: float, y: float, r: float = 8.0) -> str:
    """A five-pointed star."""
    spokes = [(r if i % 2 == 0 else 0.42 * r, math.pi * (i / 5 - 0.5)) for i in range(10)]
    return "M" + "L".join(f"{x + s * math.cos(a):.1f},{y + s * math.sin(a):.1f}" for s, a in spokes) + "Z"


def legend(methods: Sequence[str], y: float) -> list[str]:
    """Marks and names."""
    out, x = list[str](), float(LEFT)
    for index, method in enumerate(methods):
        colour = COLOURS[index % len(COLOURS)]
        out.append(f'<path d="{mark(index, x, y - 4)}" fill="{colour}" stroke="{colour}"/>')
        out.append(f'<text x="{x + 10:.1f}" y="{y}">{escape(method)}</text>')
        x += 26 + 7.5 * len(method)
    out.append(f'<path class="real" d="{star_path(x, y - 4, 7)}"/><text x="{x + 11:.1f}" y="{y}">held-out text</text>')
    return out


def log_ticks(low: float, high: float) -> list[float]:
    """A few round numbers between low and high, for a logarithmic axis; finer ones where the range is narrow."""
    for leads in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(1 + i / 10 for i in range(90))):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [lead * 10.0**d for d in decades for lead in leads]
        ticks = [round(t, 6) for t in ticks if low <= t <= high]
        if len(ticks) >= 3:
            return ticks if len(ticks) <= 9 else ticks[:: math.ceil(len(ticks) / 6)]
    return [round(low, 3), round(high, 3)]
