"""Windows and batches: everything is scored once, with enough before it."""

from __future__ import annotations

import pytest

from tsdfm.judges.windows import Window, batches, windows


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 12, 13, 40, 41])
@pytest.mark.parametrize("first", [0, 1, 5, 11, 40])
def test_each_token_is_scored_once_in_context(length: int, first: int) -> None:
    tokens, context, stride = list(range(100, 100 + length)), 8, 4
    scored: list[int] = []
    for one in windows(3, tokens, first, context, stride):
        assert one.text == 3
        assert 1 <= len(one.tokens) <= context
        assert 1 <= one.first < len(one.tokens)
        begin = one.tokens[0] - 100
        assert list(one.tokens) == tokens[begin : begin + len(one.tokens)]
        if begin:  # at least context − stride tokens before whatever is scored
            assert one.first >= context - stride
        scored += list(one.tokens)[one.first :]
    assert scored == tokens[max(1, first) :]


def test_windows_by_hand() -> None:
    found = [(list(p.tokens), p.first) for p in windows(0, "abcdefghij", 1, 4, 2)]  # type: ignore[arg-type]
    assert found == [(list("abcd"), 1), (list("cdef"), 2), (list("efgh"), 2), (list("ghij"), 2)]


def test_batches_hold_all_passes_within_their_room() -> None:
    work = [Window(i, [0] * n, 1) for i, n in enumerate((3, 9, 2, 9, 5, 30, 1))]
    made = list(batches(work, room=18))
    assert sorted(p.text for batch in made for p in batch) == list(range(7))
    assert [len(batch[0].tokens) for batch in made] == sorted((len(b[0].tokens) for b in made), reverse=True)
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(len(p.tokens) for p in batch) <= 18
    assert max(len(batch) for batch in batches(work, room=1000, most=2)) == 2
    assert list(batches([], room=4)) == []
