"""Energy against t with its spread, as an SVG written by hand: no plotting library is needed to look at a compass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 48
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #ddd; } .band { fill: #3b6fb6; opacity: .2; } .line { fill: none; stroke: #3b6fb6; stroke-width: 2; }
  .dot { fill: #3b6fb6; }
"""


def energy_figure(found: Mapping[str, Any]) -> str:
    """The mean energy of each time bin at the bin's middle, in a band of one standard deviation to either side."""
    points = [
        ((part["from"] + part["to"]) / 2, part["mean"], part["std"])
        for part in found["bins"]
        if part["mean"] is not None
    ]
    low, high = min(m - s for _, m, s in points), max(m + s for _, m, s in points)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    top = [place(t, m + s, low, high) for t, m, s in points]
    bottom = [place(t, m - s, low, high) for t, m, s in points]
    line = [place(t, m, low, high) for t, m, _ in points]
    title = f"Energy against time, {found['source']} source"
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="26">{title} (mean ± one standard deviation)</text>',
        *axes(ticks, low, high),
        f'<polygon class="band" points="{join(top + bottom[::-1])}"/>',
        f'<polyline class="line" points="{join(line)}"/>',
        *(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in line),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def axes(ticks: Sequence[float], low: float, high: float) -> list[str]:
    """Grid lines with their numbers, and what the axes are."""
    out = []
    for value in ticks:
        _, y = place(0.0, value, low, high)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for i in range(6):
        x, _ = place(i / 5, low, low, high)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{i / 5:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">time t</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turn = f'transform="rotate(-90 16 {middle})"'
    return [*out, f'<text x="16" y="{middle}" text-anchor="middle" {turn}>energy E(x)</text>']


def place(t: float, energy: float, low: float, high: float) -> tuple[float, float]:
    """The point of (t, energy) in the picture."""
    x = LEFT + t * (WIDTH - LEFT - RIGHT)
    return x, TOP + (high - energy) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)


def join(points: Sequence[tuple[float, float]]) -> str:
    """Points as SVG writes them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def nice_ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers that cover low to high."""
    span = max(high - low, 1e-9)
    step = 10.0**-9
    while not span / step <= 8:
        step = next_step(step)
    first = int(low // step)
    last = int(-(-high // step))
    return [round(i * step, 12) for i in range(first, last + 1)]


def next_step(step: float) -> float:
    """1, 2, 5, 10, 20, 50, …"""
    lead = float(f"{step:e}"[0])
    return step * (2.5 if lead == 2 else 2.0)
