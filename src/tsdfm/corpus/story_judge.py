"""The story world's exact judge: is a text a valid story, which rule does it break, and how likely is it.

For a valid story, `log_likelihood` is exact. So that other texts can be compared too, the judge also is a proper
autoregressive model, the ε-noisy world: each next word follows (1 − ε)·law + ε/(|V| + 2), over the words, one symbol
for anything unknown, and the end. When a word comes that the law forbids, the judge notes the rule, charges ε/(|V| + 2)
and goes on as if the likeliest word had come; at full stops it finds its place again. What it predicts depends on
the words before alone, so the probabilities of all word sequences add up to one. (A text whose words
are right but whose spaces are not is no story either; it is charged one more log ε.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tsdfm.corpus.world import END, FULL, Law, Story, World, render

NOISE = 0.001
WORD = re.compile(r"[^\W_]+|[^\s]")


@dataclass(frozen=True)
class Violation:
    """A word that may not stand where it stands: its index, the rule it breaks, and what the likeliest word was."""

    index: int
    word: str
    rule: str
    expected: str


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one text. `events` counts the words and the end, each of which was predicted."""

    violations: tuple[Violation, ...]
    log_likelihood: float  # exact, in nats; −inf for a text the grammar cannot write
    noisy_log_likelihood: float  # under the ε-noisy world; finite for every text
    events: int

    @property
    def valid(self) -> bool:
        return not self.violations

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood of an event under the ε-noisy world."""
        return math.exp(-self.noisy_log_likelihood / self.events)


class Reader:
    """Follows one story, word by word."""

    def __init__(self, world: World) -> None:
        self.teller: Story = world.story()
        self.law: Law = next(self.teller)

    def likeliest(self) -> str:
        return max(self.law.words, key=self.law.words.__getitem__)

    def advance(self, word: str) -> None:
        if word != END:
            self.law = self.teller.send(word)

    def resume_after(self, word: str) -> None:
        """After a forbidden word: step over one, or to where the next sentence begins if a sentence ended early."""
        if word == ".":
            while self.likeliest() not in (".", END):
                self.advance(self.likeliest())
            self.advance(self.likeliest())
        elif self.likeliest() != ".":  # a sentence that is too long waits at its full stop
            self.advance(self.likeliest())


def judge(text: str, world: World = FULL, noise: float = NOISE) -> Verdict:
    """Read `text` as a story of `world`."""
    words = WORD.findall(text)
    verdict = _read([*words, END], world, noise)
    if verdict.valid and render(words) != text:
        spaced = Violation(len(words), text, "spacing", render(words))
        return Verdict((spaced,), -math.inf, verdict.noisy_log_likelihood + math.log(noise), verdict.events)
    return verdict


def _read(events: Sequence[str], world: World, noise: float) -> Verdict:
    reader = Reader(world)
    violations: list[Violation] = []
    exact = noisy = 0.0
    floor = noise / (len(world.vocabulary()) + 2)
    for index, word in enumerate(events):
        chance = reader.law.words.get(word, 0.0)
        noisy += math.log((1 - noise) * chance + floor)
        if chance > 0.0:
            exact += math.log(chance)
            reader.advance(word)
        else:
            violations.append(Violation(index, word or "(end)", reader.law.rule, reader.likeliest() or "(end)"))
            reader.resume_after(word)
    return Verdict(tuple(violations), -math.inf if violations else exact, noisy, len(events))
