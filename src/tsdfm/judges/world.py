"""The story world's exact judge, word by word."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsdfm.corpus.story_judge import NOISE, WORD, Reader
from tsdfm.corpus.world import END, World, render
from tsdfm.judges.base import OnDone, Score, check_prefixes, fingerprint


class Event(NamedTuple):
    """A word, or the end: where it ends in the text, −log p under the ε-noisy world, whether it was the likeliest."""

    end: int
    nll: float
    hit: bool


@dataclass(frozen=True)
class WorldJudge:
    """The ε-noisy world as a judge: its tokens are the words of a text and its end. See `corpus.story_judge`."""

    world: World
    precision: str = "exact"

    @property
    def name(self) -> str:
        return f"story world {self.world.name}"

    @property
    def fingerprint(self) -> str:
        """A hash of the world and of the noise it allows."""
        content = hashlib.sha256(f"{self.world.fingerprint} {NOISE}".encode()).hexdigest()
        return fingerprint("story-world", self.world.name, content)

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        """A score for each text; with prefixes, of the words that end after it."""
        found = []
        for number, (text, known) in enumerate(zip(texts, check_prefixes(texts, prefixes), strict=True)):
            scored = [event for event in events(text, self.world) if event.end > known]
            nll = math.fsum(event.nll for event in scored)
            found.append(Score(nll, len(scored), len(text) - known, sum(event.hit for event in scored)))
            if on_done is not None:
                on_done(number + 1, len(texts))
        return found


def events(text: str, world: World) -> Iterator[Event]:
    """The words of a text and its end, as the judge reads them; the end stands one past the text."""
    reader = Reader(world)
    floor = NOISE / (len(world.vocabulary()) + 2)
    found = [(match.group(), match.end()) for match in WORD.finditer(text)]
    valid = True
    for word, end in [*found, (END, len(text) + 1)]:
        chance = reader.law.words.get(word, 0.0)
        valid = valid and chance > 0.0
        nll = -math.log((1 - NOISE) * chance + floor)
        if word == END and valid and render([w for w, _ in found]) != text:
            nll -= math.log(NOISE)  # right words, wrong spaces
        yield Event(end, nll, word == reader.likeliest())
        if chance > 0.0:
            reader.advance(word)
        else:
            reader.resume_after(word)
