"""Trajectories for the page's player: those of one source stand side by side and run in step with time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tsdfm.report.page.gather import GLYPHS, way_label
from tsdfm.report.rows import Plain
from tsdfm.report.runs import rank
from tsdfm.samples.trajectory import Row, State, Trajectory
from tsdfm.terminal import visible

END = "¶"
UNKNOWN = "\ufffd"


def players(ways: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories that belong side by side: of one source, one seed and one length; the teacher first."""
    groups: dict[tuple[Any, ...], list[Trajectory]] = {}
    for way in ways:
        if way.rows:
            groups.setdefault((way.source, way.seed, len(way.rows[0].start)), []).append(way)
    order = sorted(groups, key=lambda name: (name[0] != "uniform", *name))
    return [sorted(groups[name], key=lambda way: (rank(way.method), way_label(way), way.steps)) for name in order]


def player_data(group: Sequence[Trajectory], styles: Mapping[str, int]) -> Plain:
    """A group as the script plays it."""
    return {
        "source": group[0].source,
        "seed": group[0].seed,
        "panels": [
            {
                "name": way_label(way),
                "glyph": GLYPHS[styles[way_label(way)]],
                "style": styles[way_label(way)],
                "steps": way.steps,
                "mask": way.mask,
                "end": way.end_of_text,
                "pieces": {token: visible(piece) for token, piece in way.pieces.items()},
                "rows": [row_data(row, way.mask) for row in way.rows],
            }
            for way in group
        ],
    }


def row_data(row: Row, mask: int | None) -> Plain:
    """One text: its start, then for each step its time, changes, replacements, confidence and energy."""
    states = list(row.replay(mask))[1:]
    return {
        "given": row.given,
        "start": row.start,
        "energy": row.energy,
        "steps": [
            {
                "t": round(state.time, 6),
                "c": [number for change in step.changes for number in change],
                "r": sorted(state.replaced),
                "p": round(step.confidence, 4),
                "e": None if state.energy is None else round(state.energy, 3),
            }
            for step, state in zip(row.steps, states, strict=True)
        ],
    }


def finished(way: Trajectory) -> Iterator[tuple[str, State]]:
    """The finished texts of a trajectory without their padding, and their last states."""
    words = {way.end_of_text: END, way.mask: "░"}
    for row in way.rows:
        last = list(row.replay(way.mask))[-1]
        kept = list(last.tokens)
        while kept and kept[-1] == way.end_of_text:
            kept.pop()
        while kept and kept[0] == way.end_of_text:
            kept.pop(0)
        yield "".join(words.get(token) or visible(way.pieces.get(token, UNKNOWN)) for token in kept), last
