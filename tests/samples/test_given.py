"""Prefixes and infill templates as clamped tokens."""

from __future__ import annotations

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.samples.given import read_asked
from tsdfm.tokens.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
END = BYTES.end_of_text


def read(length: int, anchor: int, prefix: str | None = None, infill: str | None = None) -> list[int | None] | None:
    """The given tokens, None where there is a gap."""
    asked = {"prefixes": [] if prefix is None else [prefix], "infills": [] if infill is None else [infill]}
    made = read_asked(BYTES, length, anchor, **asked).given
    if made is None:
        return None
    held, tokens = made.held[0], made.tokens[0]
    assert held.shape == tokens.shape == (length,)
    assert (held.dtype, tokens.dtype) == (torch.bool, torch.int64)
    return [int(token) if is_held else None for is_held, token in zip(held, tokens, strict=True)]


def test_nothing_given() -> None:
    assert read(4, 0) is None
    assert read(4, 0, prefix="") is None
    assert read(4, 2) == [END, END, None, None]


def test_prefix() -> None:
    assert read(5, 0, prefix="ab") == [97, 98, None, None, None]
    assert read(5, 1, prefix="ab") == [END, 97, 98, None, None]
    assert read(4, 1, prefix="{2}") == [END, *b"{2}"]  # in a plain prefix, braces are text
    assert read(3, 0, prefix="é") == [0xC3, 0xA9, None]


def test_infill() -> None:
    assert read(7, 0, infill="a{2}b{1}c") == [97, None, None, 98, None, 99, None]
    assert read(5, 1, infill="{3}a") == [END, None, None, None, 97]
    assert read(8, 0, infill="{x}{1}{") == [*b"{x}", None, *b"{", None, None, None]
    assert read(4, 0, infill="{2}{1}a") == [None, None, None, 97]


@pytest.mark.parametrize("anchor", [0, 1])
def test_too_long(anchor: int) -> None:
    room = 6 - anchor
    assert read(6, anchor, prefix="x" * room) is not None
    assert read(6, anchor, infill=f"x{{{room - 1}}}") is not None
    with pytest.raises(UserError, match=f"the prefix has {room + 1} tokens, the model writes {room}: shorten"):
        read(6, anchor, prefix="x" * (room + 1))
    with pytest.raises(UserError, match=f"the infill template has {room + 1} tokens"):
        read(6, anchor, infill=f"x{{{room}}}")
    with pytest.raises(UserError, match=f"has at least {room + 3} tokens, the model writes {room}"):
        read(6, anchor, infill=f"x{{1}}{'x' * room}{{1}}x")
    with pytest.raises(UserError, match="has 7 gaps, the model writes 6 tokens"):
        read(6, anchor, infill="{1}" * 7)


def test_no_more_rows_are_made_than_may_be() -> None:
    """What takes too many is refused before any is read: a text that is too long as well is not looked at."""
    assert len(read_asked(BYTES, 6, 0, 2, infills=["{1-2}", "a{1}"], most=6).numbers) == 6
    for asked, count in (
        ({"prefixes": ["x" * 7, *"abc"]}, "8 rows, at most 6"),
        ({"prefixes": ["x" * 7] * 99}, "at least 8 rows, at most 6"),
        ({"infills": ["{1-4}" + "x" * 7]}, "8 rows, at most 6"),
        ({"infills": ["{1-4}" + "x" * 7] * 99}, "at least 8 rows, at most 6"),
    ):
        with pytest.raises(UserError, match=count):
            read_asked(BYTES, 6, 0, 2, **asked, most=6)


@pytest.mark.parametrize("gap", ["7", "99999999999999", "9" * 5000])
def test_a_gap_beyond_the_row(gap: str) -> None:
    """Refused before a list of that many places is made."""
    with pytest.raises(UserError, match="larger than the 6 tokens"):
        read(6, 0, infill=f"a{{{gap}}}")


def test_what_makes_no_sense() -> None:
    with pytest.raises(UserError, match="either a prefix or an infill template"):
        read(6, 0, prefix="a", infill="{1}")
    for template in ("no gap", "{0}", "{x}", ""):
        with pytest.raises(UserError, match=r"has no gap: write \{5\}"):
            read(10, 0, infill=template)
