"""Replay trajectories in the terminal: method beside method, as the texts appear.

New tokens are bold, underlined and green; replaced ones bold, italic and reversed; [MASK] is a block; noise that nobody
has touched is dim. No mark is a colour alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tsdfm.report.page.gather import way_label
from tsdfm.report.page.ways import END, UNKNOWN, players
from tsdfm.samples.trajectory import Row, State, Trajectory
from tsdfm.terminal import visible

MASKED = "░░░ "
NEW, REPLACED, NOISE, GIVEN = "bold underline green", "bold italic reverse yellow", "dim", "cyan"
NARROWEST = 34  # columns of a panel; on less, methods stand below each other


def paint(trajectory: Trajectory, row: Row, state: State) -> Text:
    """One state as styled text."""
    out, held = Text(), frozenset(row.given)
    for position, token in enumerate(state.tokens):
        if token == trajectory.mask:
            out.append(MASKED, style="dim")
            continue
        end = token == trajectory.end_of_text
        if end and position == 0 and position in held:  # the anchor before the text says nothing
            continue
        piece = END if end else visible(trajectory.pieces.get(token, UNKNOWN))
        if position in state.new:
            style = NEW
        elif position in state.replaced:
            style = REPLACED
        elif end or (position in state.noise and state.time < 1):
            style = NOISE
        else:
            style = GIVEN if position in held else ""
        space = len(piece) - len(piece.lstrip(" "))  # the space before a word is not part of the mark
        out.append(piece[:space])
        out.append(piece[space:], style=style)
    return out


def panel(trajectory: Trajectory, row: Row, states: Sequence[State], now: float, text: int, texts: int) -> Panel:
    """One text of one method at one time."""
    index = max(i for i, state in enumerate(states) if state.time <= now + 1e-9)
    state = states[index]
    title = f"{way_label(trajectory)}   step {index}/{trajectory.steps}"
    title += f"   text {text + 1}" if texts > 1 else ""
    said = [f"t = {state.time:.3f}"]
    said += [f"confidence {state.confidence:.2f}"] if state.confidence is not None else ["noise"]
    said += [f"energy {state.energy:.2f}"] if state.energy is not None else []
    said += [f"{len(state.new)} new, {len(state.replaced)} replaced"] if index else []
    body = Group(paint(trajectory, row, state), Text(", ".join(said), style="dim"))
    return Panel(body, title=Text(visible(title)), title_align="left")


def frames(group: Sequence[Trajectory], width: int) -> list[RenderableType]:
    """All texts of trajectories that belong side by side, at every time at which one of them moves."""
    texts = min(len(way.rows) for way in group)
    states = [[list(row.replay(way.mask)) for row in way.rows] for way in group]
    times = sorted({round(state.time, 9) for way in states for row in way for state in row})
    beside = width >= NARROWEST * len(group)
    heading = Text(visible(f"{group[0].source} source, seed {group[0].seed}"), style="bold")
    out: list[RenderableType] = []
    for now in times:
        lines: list[RenderableType] = [heading, legend(group)]
        for text in range(texts):
            panels = [
                panel(way, way.rows[text], of[text], now, text, texts) for way, of in zip(group, states, strict=True)
            ]
            lines += [side_by_side(panels)] if beside and len(panels) > 1 else panels
        out.append(Group(*lines))
    return out


def legend(group: Sequence[Trajectory]) -> Text:
    """What the marks mean, of those that these trajectories can show."""
    marks = [("new", NEW), (" written in this step   ", ""), ("replaced", REPLACED), (" written before   ", "")]
    masked = any(way.mask is not None for way in group)
    marks += [(MASKED.strip(), NOISE), (" masked", "")] if masked else [("dim", NOISE), (" noise still", "")]
    return Text.assemble(*marks, (f"   {END}", NOISE), " end of the text")


def side_by_side(panels: Sequence[Panel]) -> Table:
    """Panels in columns of one width."""
    grid = Table.grid(expand=True)
    for _ in panels:
        grid.add_column(ratio=1)
    grid.add_row(*panels)
    return grid


def replay_all(trajectories: Sequence[Trajectory], console: Console | None = None, seconds: float = 4.0) -> None:
    """Play one source after the other in about `seconds` each; without a terminal, print a few states of each."""
    console = console or Console()
    for group in players(trajectories):
        pictures = frames(group, console.width)
        last = len(pictures) - 1
        if not console.is_terminal or console.is_dumb_terminal:
            for index in sorted({0, last // 4, last // 2, last}):
                console.print(pictures[index])
            continue
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for picture in pictures:
                live.update(picture, refresh=True)
                time.sleep(seconds / len(pictures))


def replay(trajectory: Trajectory, console: Console | None = None, seconds: float = 4.0) -> None:
    """Play the texts of one trajectory."""
    replay_all([trajectory], console, seconds)
