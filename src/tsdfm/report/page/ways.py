"""Trajectories for the page's player: those of one source stand side by side and run in step with time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsdfm.report.page.gather import way_label
from tsdfm.report.page.markup import GLYPHS, ORDER, badge, esc, number, style_of
from tsdfm.samples.trajectory import Row, Trajectory

END = "¶"
UNKNOWN = "\ufffd"


def players(ways: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories that belong side by side: of one source, one seed and one length; the teacher first."""
    groups: dict[tuple[Any, ...], list[Trajectory]] = {}
    for way in ways:
        if way.rows:
            groups.setdefault((way.source, way.seed, len(way.rows[0].start)), []).append(way)
    return [sorted(groups[name], key=rank) for name in sorted(groups, key=lambda name: (name[0] != "uniform", *name))]


def rank(way: Trajectory) -> tuple[int, str, int]:
    place = ORDER.index(way.method) if way.method in ORDER else len(ORDER)
    return place, way_label(way), way.steps


def player_data(group: Sequence[Trajectory], methods: Sequence[str]) -> dict[str, Any]:
    """A group as the script plays it."""
    return {
        "source": group[0].source,
        "seed": group[0].seed,
        "panels": [
            {
                "name": way_label(way),
                "glyph": GLYPHS[style_of(way_label(way), methods)],
                "style": style_of(way_label(way), methods),
                "steps": way.steps,
                "mask": way.mask,
                "end": way.end_of_text,
                "pieces": way.pieces,
                "rows": [row_data(row, way.mask) for row in way.rows],
            }
            for way in group
        ],
    }


def row_data(row: Row, mask: int | None) -> dict[str, Any]:
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


def player(index: int, group: Sequence[Trajectory], methods: Sequence[str], start: str = "halfway") -> str:
    """The player's place; without scripts it holds the finished texts. `start` is `halfway` or `noise`."""
    panels = "".join(f'<article class="panel">{still(way, methods)}</article>' for way in group)
    title = f"{esc(group[0].source)} source, seed {group[0].seed}"
    about = f'data-player="{index}" data-title="{title}" data-start="{start}"'
    return f'<div class="player" {about}><div class="panels">{panels}</div></div>'


def still(way: Trajectory, methods: Sequence[str]) -> str:
    """The finished texts of a trajectory, with what the last step says of them."""
    out = [f"<h4>{badge(way_label(way), methods)} <small>{way.steps} steps</small></h4>"]
    for row in way.rows:
        last = list(row.replay(way.mask))[-1]
        out.append(f'<p class="text">{esc(text_of(way, last.tokens))}</p>')
        sure = f"confidence {number(last.confidence)}" if last.confidence is not None else ""
        force = f", energy {number(last.energy)}" if last.energy is not None else ""
        out.append(f'<p class="meta">{sure}{force}</p>')
    return "".join(out)


def text_of(way: Trajectory, tokens: Sequence[int]) -> str:
    """A state as text; its padding is left out."""
    kept = list(tokens)
    while kept and kept[-1] == way.end_of_text:
        kept.pop()
    while kept and kept[0] == way.end_of_text:
        kept.pop(0)
    words = {way.end_of_text: END, way.mask: "░"}
    return "".join(words.get(token) or way.pieces.get(token, UNKNOWN) for token in kept)
