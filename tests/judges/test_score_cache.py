"""Scores on disk: nothing is scored twice, and an interruption costs one part at most."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tsdfm.corpus.world import SMALL
from tsdfm.judges import Score, score_file
from tsdfm.judges.base import OnDone
from tsdfm.judges.cache import key_of
from tsdfm.judges.world import WorldJudge

TEXTS = ["Mia has two red balls.", "Tom", "", "Tom", "She meets him.", "Mia has two red balls. She meets Tom."]


@dataclass
class Counting:
    """The story world's judge, with a count of what it was asked and a plug to pull."""

    breaks_at: int | None = None
    seen: list[str] = field(default_factory=list)
    precision: str = "exact"
    inner: WorldJudge = field(default_factory=lambda: WorldJudge(SMALL))

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        if self.breaks_at is not None and len(self.seen) >= self.breaks_at:
            raise KeyboardInterrupt
        self.seen += texts
        return self.inner.score(texts, prefixes=prefixes, on_done=on_done)


def test_an_interrupted_scoring_goes_on(tmp_path: Path) -> None:
    path, direct = tmp_path / "deep" / "scores.jsonl", WorldJudge(SMALL).score(TEXTS)
    broken = Counting(breaks_at=2)
    with pytest.raises(KeyboardInterrupt):
        score_file(broken, TEXTS, path, part=2)
    assert len(broken.seen) == 2
    second = Counting()
    assert score_file(second, TEXTS, path, part=2) == direct
    assert sorted(broken.seen + second.seen) == sorted(set(TEXTS))  # each text once, the twin not again
    third = Counting()
    assert score_file(third, TEXTS[::-1], path) == direct[::-1]
    assert third.seen == []


def test_a_line_cut_short_is_scored_again_and_harms_nothing(tmp_path: Path) -> None:
    path, direct = tmp_path / "scores.jsonl", WorldJudge(SMALL).score(TEXTS)
    score_file(Counting(), TEXTS, path)
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 20, len(whole) // 2, 3):
        path.write_bytes(whole[:cut])
        assert score_file(Counting(), TEXTS, path) == direct
        again = Counting()
        assert score_file(again, TEXTS, path) == direct
        assert again.seen == []


def test_judges_precisions_and_prefixes_are_kept_apart(tmp_path: Path) -> None:
    path, text = tmp_path / "scores.jsonl", TEXTS[-1]
    (whole,) = score_file(Counting(), [text], path)
    (rest,) = score_file(Counting(), [text], path, prefixes=["Mia has"])
    assert rest.tokens == whole.tokens - 2
    rough = Counting(precision="bf16")
    score_file(rough, [text], path)
    assert rough.seen == [text]
    from tsdfm.corpus.world import FULL

    other = Counting(inner=WorldJudge(FULL))
    assert score_file(other, [text], path)[0].nll != whole.nll
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 4
    assert len({(line["judge"], line["key"]) for line in lines}) == 4
    assert key_of("a") != key_of("a", "a")


def test_progress_counts_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    score_file(Counting(), TEXTS[:2], path)
    seen: list[tuple[int, int]] = []
    score_file(Counting(), TEXTS, path, on_done=lambda done, total: seen.append((done, total)), part=1)
    assert seen[0][0] >= 3
    assert seen[-1] == (6, 6)
    assert all(a <= b for a, b in itertools.pairwise(seen))
