"""A still picture: which states, which marks, and that no token can break out of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from view_parts import HOSTILE, way

from tsdfm.errors import UserError
from tsdfm.view.image import COLUMNS, spread, trajectory_image, wrapped
from tsdfm.view.run import run
from tsdfm.view.settings import ViewSettings


def marks(picture: str) -> list[tuple[str, str]]:
    """(mark, letters) of every span."""
    found = []
    for span in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}tspan"):
        mark = "new" if "text-decoration" in span.attrib else "replaced" if "font-style" in span.attrib else "plain"
        found.append((mark, span.text or ""))
    return found


def test_states_are_spread_over_the_way() -> None:
    assert spread(9, 5) == [0, 2, 4, 6, 8]
    assert spread(4, 3) == [0, 2, 3]
    assert spread(3, 7) == [0, 1, 2]
    assert spread(5, 1) == [4]


def test_marks_and_times_are_those_of_the_way() -> None:
    made = way(pieces={0: "the", 1: " cat", 2: " sat", 4: "xx"})
    picture = trajectory_image([made], shown=4)
    found = marks(picture)
    assert found.count(("new", "the")) == 1
    assert ("new", "cat") in found
    assert found.count(("replaced", "sat")) == 1  # place 1, in the second step
    assert found.count(("replaced", "the")) == 1  # and back in the third
    for said in ("step 0 of 3, t = 0", "step 1 of 3, t = 0.25", "step 3 of 3, t = 1", "energy -3.0"):
        assert said in picture


def test_a_token_is_never_markup_and_lines_have_their_length() -> None:
    made = way()
    picture = trajectory_image([made, way("ts-dfm \x1b[2J")])
    assert "<img" not in picture
    assert r"\x1b[2J" in picture
    assert "onerror" in "".join(letters for _, letters in marks(picture))
    state = next(iter(made.rows[0].replay(made.mask)))
    lines = wrapped(made, made.rows[0], state, 3)
    assert [sum(len(part) for _, part in line) for line in lines[:2]] == [COLUMNS, COLUMNS]
    assert len(lines) == 3
    assert HOSTILE[:5] in "".join(part for _, part in lines[0])


def test_the_command_writes_it(tmp_path: Path) -> None:
    way().save(tmp_path / "way.json")
    target = tmp_path / "way.svg"
    assert run(ViewSettings(paths=(tmp_path / "way.json",), image=target)) == target
    ElementTree.fromstring(target.read_text())
    with pytest.raises(UserError, match="makes a picture and no page"):
        ViewSettings(image=target, terminal=True)
