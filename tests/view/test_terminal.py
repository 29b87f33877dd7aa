"""The terminal replay: what is new or replaced is marked, [MASK] is a block, the last frame is the text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text
from view_parts import HOSTILE, row, way

from tsdfm.report.rows import Row
from tsdfm.report.summary import texts_of
from tsdfm.samples.trajectory import Trajectory
from tsdfm.terminal import visible
from tsdfm.view.terminal import MASKED, NEW, NOISE, REPLACED, frames, paint, replay, replay_all


def marked(text: Text, style: str) -> list[str]:
    return [text.plain[span.start : span.end] for span in text.spans if str(span.style) == style]


def test_states_are_painted_with_their_marks() -> None:
    mask = way(source="mask")
    row = mask.rows[0]
    painted = [paint(mask, row, state) for state in row.replay(mask.mask)]
    assert [text.plain for text in painted] == [2 * MASKED + " sat", f"the{MASKED} sat", " sat cat sat", "the cat sat"]
    assert [marked(text, NEW) for text in painted] == [[], ["the"], ["cat"], []]
    assert [marked(text, REPLACED) for text in painted] == [[], [], ["sat"], ["the"]]
    uniform = way()
    first, *_, last = (paint(uniform, uniform.rows[0], state) for state in uniform.rows[0].replay())
    assert "sat" in marked(first, NOISE)
    assert marked(last, NOISE) == []  # at t = 1 nothing is noise any more


STEERING = "\x1b[2J\x1b]0;owned\x07\r\x08\x7f\x9b1m\u202e\u2028"


def test_control_characters_are_shown_and_letters_stay() -> None:
    assert visible("a\x1b[2Jb\x07\u202e é\n\t\r") == "a\\x1b[2Jb\\x07\\u202e é\n\t\\r"
    assert visible("\x00\x7f\x9b\u2028\U000e0041\ud800") == r"\x00\x7f\x9b\u2028\U000e0041\ud800"
    kept = "Æ 中文 العربية \u00a0 👩\u200d👧 \ufffd [bold] \\"
    assert visible(kept) == kept
    assert visible(HOSTILE).startswith("</script><img")


def test_noise_cannot_steer_the_terminal() -> None:
    noisy = way(pieces={4: STEERING})
    assert visible(STEERING) in paint(noisy, noisy.rows[1], next(noisy.rows[1].replay())).plain


def test_nothing_in_a_file_can_steer_the_terminal() -> None:
    """Its tokens, its names, and its seed, which a file may spell as it likes."""
    given = {"source": f"mask{STEERING}", "guide": f"[red]{STEERING}", "pieces": dict.fromkeys(range(5), STEERING)}
    ways = [way(name + STEERING, seed=STEERING, **given) for name in ("[bold]teacher", "ts-dfm")]
    for width in (60, 400):
        shown = show(ways, width)
        assert all(letter == "\n" or letter.isprintable() for letter in shown)
        assert r"\x1b[2J" in shown
    assert "[bold]teacher" in show(ways, 400)  # a name is no markup either
    assert "+ [red]" in show(ways, 400)


def test_texts_at_the_end_of_a_pipeline_cannot_steer_the_terminal() -> None:
    made = Row.read(row("teacher", "mask", 8, 0.5, texts=[STEERING]))
    assert texts_of([made], 3) == [f"teacher, mask source, 8 steps: {visible(STEERING)}"]


def test_the_marks_are_explained() -> None:
    for source, sign in (("uniform", "dim noise still"), ("mask", "░░░ masked")):
        shown = show([way(source=source)], 120)
        assert f"new written in this step   replaced written before   {sign}   ¶ end of the text" in shown


def show(ways: list[Trajectory], width: int) -> str:
    out = io.StringIO()
    replay_all(ways, Console(file=out, width=width))
    return out.getvalue()


def test_methods_stand_side_by_side_where_there_is_room() -> None:
    ways = [way("teacher", "mask"), way("ts-dfm", "mask")]
    lines = show(ways, 120).splitlines()
    both = [line for line in lines if "teacher" in line and "ts-dfm" in line]
    assert len(both) == 3 * 2  # frames shown (first, one between, last), times texts
    assert "teacher   step 0/3   text 1" in both[0]
    assert all("teacher" not in line or "ts-dfm" not in line for line in show(ways, 60).splitlines())
    assert "confidence 0.88, energy -3.00, 0 new, 1 replaced" in show(ways, 140)


def test_different_step_counts_run_by_the_same_clock() -> None:
    slow, fast = way("teacher"), way("ts-dfm")
    one = tuple(row.__class__(row.start, row.given, (row.steps[-1].__class__(0.0, 1.0, (), 0.5),)) for row in fast.rows)
    fast = Trajectory(**{**vars(fast), "steps": 1, "nfe": 1, "rows": one})
    assert len(frames([slow, fast], 120)) == 4  # t = 0, 1/4, 1/2, 1
    shown = show([slow, fast], 120)
    assert [n in shown for n in ("step 1/3", "step 0/1", "step 1/1")] == [True, True, True]


def test_without_a_terminal_the_replay_prints_a_few_states() -> None:
    out = io.StringIO()
    replay(way(source="mask"), Console(file=out, width=80))
    for word in ("step 0/3", "step 1/3", "step 3/3", "the cat sat", "t = 1.000, confidence 0.88, energy -3.00"):
        assert word in out.getvalue()


def test_on_a_terminal_every_frame_is_played_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    replay(way(source="mask"), Console(file=out, width=80, force_terminal=True, color_system=None), seconds=0.0)
    assert "the cat sat" in out.getvalue()
