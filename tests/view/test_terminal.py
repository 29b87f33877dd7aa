"""The terminal replay: what is new is marked, [MASK] is a block, the last frame is the text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tsdfm.samples.trajectory import Change, Row, Trajectory
from tsdfm.view.terminal import MASKED, paint, replay

MASK, END = 4, 3
WAY = Trajectory(
    method="teacher",
    source="mask",
    steps=2,
    nfe=2,
    seed=0,
    vocab=4,
    mask=MASK,
    end_of_text=END,
    pieces={0: "the", 1: " cat", 2: " sat", 3: ""},
    rows=(
        Row((END, MASK, MASK, MASK), (0,), (Change(0.0, 0.5, ((1, 0),), 0.4), Change(0.5, 0.5, ((2, 1), (3, 2)), 0.9))),
    ),
)


def test_states_are_painted_with_their_changes() -> None:
    states = list(WAY.rows[0].states())
    first = paint(WAY, *states[0], WAY.rows[0].given)
    assert first.plain == "¶" + 3 * MASKED
    second = paint(WAY, *states[1], WAY.rows[0].given)
    marked = [second.plain[span.start : span.end] for span in second.spans if "underline" in str(span.style)]
    assert marked == ["the"]
    last = paint(WAY, *states[2], WAY.rows[0].given)
    assert last.plain == "¶the cat sat"


def test_without_a_terminal_the_replay_prints_a_few_states() -> None:
    out = io.StringIO()
    replay(WAY, Console(file=out, width=80))
    shown = out.getvalue()
    for word in ("step 0/2", "step 1/2", "step 2/2", "the cat sat", "confidence 0.90, 2 changed"):
        assert word in shown


def test_on_a_terminal_every_frame_is_played_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    replay(WAY, Console(file=out, width=80, force_terminal=True, color_system=None), seconds=0.0)
    assert "the cat sat" in out.getvalue()
