"""Scores that a process keeps: nothing is scored twice, and what others write is seen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tsdfm.corpus.world import SMALL
from tsdfm.judges.base import OnDone, Score
from tsdfm.judges.cache import book_at, score_file
from tsdfm.judges.load import judge_named
from tsdfm.judges.world import WorldJudge

TEXTS = ["Mia has a red ball.", "Ben has a blue kite.", "", "Mia has a red ball."]


class Counting(WorldJudge):
    """The story world's judge, which remembers how much it read."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.read = 0

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        self.read += len(texts)
        return super().score(texts, prefixes=prefixes, on_done=on_done)


def test_scores_are_the_judges_own_and_each_text_is_read_once(tmp_path: Path) -> None:
    judge, path = Counting(), tmp_path / "cells" / "scores.jsonl"
    assert book_at(path).score(judge, TEXTS, None) == WorldJudge(SMALL).score(TEXTS)
    assert judge.read == 3
    done: list[tuple[int, int]] = []
    book_at(path).score(judge, [*TEXTS, "Mia"], None, on_done=lambda a, b: done.append((a, b)))
    assert judge.read == 4
    assert done[-1] == (5, 5)
    given = ["Mia", "Ben", "", "Mia"]
    assert book_at(path).score(judge, TEXTS, given) == WorldJudge(SMALL).score(TEXTS, prefixes=given)
    assert score_file(judge, TEXTS, path) == WorldJudge(SMALL).score(TEXTS)  # the file is the judges' own
    assert judge.read == 4 + 2


def test_what_others_append_or_remove_is_seen(tmp_path: Path) -> None:
    judge, path = Counting(), tmp_path / "scores.jsonl"
    book_at(path).score(judge, TEXTS[:1], None)
    score_file(WorldJudge(SMALL), TEXTS[1:2], path)
    book_at(path).score(judge, TEXTS[:2], None)
    assert judge.read == 1
    path.write_text(path.read_text()[:-20])  # a kill cut the last line short
    book_at(path).score(judge, TEXTS[:2], None)
    assert judge.read == 2
    path.unlink()
    book_at(path).score(judge, TEXTS[:2], None)
    assert judge.read == 4
    assert len(path.read_text().splitlines()) == 2


def test_a_judge_is_loaded_once_and_again_when_its_run_has_changed(own_judge: Path) -> None:
    assert judge_named("world:small", "cpu") is judge_named("world:small", "cpu")
    first = judge_named(str(own_judge), "cpu")
    assert judge_named(str(own_judge), "cpu") is first
    os.utime(own_judge / "manifest.json", ns=(1, 1))
    assert judge_named(str(own_judge), "cpu") is not first
