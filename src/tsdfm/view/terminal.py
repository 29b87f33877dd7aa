"""Replay a trajectory in the terminal: the text as it appears, new tokens bright, [MASK] as blocks."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tsdfm.samples.trajectory import Row, Trajectory

MASKED = "░░░ "
END = "¶"


def paint(trajectory: Trajectory, state: tuple[int, ...], changed: frozenset[int], given: tuple[int, ...]) -> Text:
    """One state as styled text. Changed tokens are bold and underlined as well as coloured, so colour is not needed."""
    out, held = Text(), frozenset(given)
    for position, token in enumerate(state):
        if token == trajectory.mask:
            out.append(MASKED, style="dim")
            continue
        piece = END if token == trajectory.end_of_text else trajectory.pieces.get(token, "\ufffd")
        style = "bold underline green" if position in changed else "cyan" if position in held else ""
        out.append(piece, style="dim" if token == trajectory.end_of_text and not style else style)
    return out


def frame(trajectory: Trajectory, rows: list[tuple[Row, tuple[int, ...], frozenset[int]]], index: int) -> Group:
    """All texts at one step."""
    time_now = 0.0 if index == 0 else rows[0][0].steps[index - 1].t + rows[0][0].steps[index - 1].h
    title = f"{trajectory.method}, {trajectory.source} source   step {index}/{trajectory.steps}   t = {time_now:.3f}"
    panels = []
    for number, (row, state, changed) in enumerate(rows):
        sure = f"confidence {row.steps[index - 1].confidence:.2f}, {len(changed)} changed" if index else "noise"
        panels.append(
            Panel(paint(trajectory, state, changed, row.given), title=f"{title}   {sure}", title_align="left")
        )
        title = f"text {number + 2}"
    return Group(*panels)


def replay(trajectory: Trajectory, console: Console | None = None, seconds: float = 4.0) -> None:
    """Play all texts side by side in about `seconds`; without a terminal, print a few states one after another."""
    console = console or Console()
    ways = [list(row.states()) for row in trajectory.rows]
    frames = [
        frame(trajectory, [(row, *way[i]) for row, way in zip(trajectory.rows, ways, strict=True)], i)
        for i in range(trajectory.steps + 1)
    ]
    if not console.is_terminal or console.is_dumb_terminal:
        shown = sorted({0, trajectory.steps // 4, trajectory.steps // 2, trajectory.steps})
        for index in shown:
            console.print(frames[index])
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for picture in frames:
            live.update(picture, refresh=True)
            time.sleep(seconds / len(frames))
