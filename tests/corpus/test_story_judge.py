"""The judge: which rule a broken story breaks, how it finds its place again, and that its noisy model is normalised."""

from __future__ import annotations

import functools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.corpus.story_judge import NOISE, _read, judge
from tsdfm.corpus.world import END, FULL, World, render, stories

TINY = World(
    name="tiny", women=("Mia",), men=("Tom",), objects=("ball", "box"), colours=("red", "blue"), places=("park",)
)
STORY = (
    "Mia has three red balls. She meets Tom in the garden. She gives him one. "
    "Now Tom has one red ball and Mia has two. They leave the garden."
)


def replaced(old: str, new: str, text: str = STORY) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_the_story_of_the_docstring() -> None:
    verdict = judge(STORY)
    assert verdict.valid
    assert verdict.violations == ()
    assert verdict.events == len(STORY.replace(".", " .").split()) + 1


BROKEN = [
    ("name", "Mia has three", "Xavier has three"),
    ("name", "meets Tom", "meets Mia"),
    ("name", "Now Tom", "Now Ben"),
    ("name", "and Mia has", "and Tom has"),
    ("pronoun", "She meets", "He meets"),
    ("pronoun", "She gives", "He gives"),
    ("pronoun", "gives him", "gives her"),
    ("verb", "meets", "eats"),
    ("count", "has three", "has one"),
    ("count", "gives him one", "gives him three"),
    ("count", "Tom has one", "Tom has two"),
    ("count", "Mia has two", "Mia has three"),
    ("colour", "three red", "three loud"),
    ("colour", "one red", "one blue"),
    ("object", "red balls", "red ball"),
    ("object", "red ball and", "red balls and"),
    ("object", "red ball and", "red hat and"),
    ("place", "in the garden", "in the cloud"),
    ("place", "leave the garden", "leave the house"),
    ("grammar", "Tom in", "Tom at"),
    ("grammar", "Now", "Then"),
    ("ending", "They leave the garden", "We leave the garden"),
    ("end", "leave the garden.", "leave the garden. Mia"),
]


@pytest.mark.parametrize(("rule", "old", "new"), BROKEN)
def test_one_broken_rule(rule: str, old: str, new: str) -> None:
    text = replaced(old, new)
    verdict = judge(text)
    assert not verdict.valid
    assert verdict.log_likelihood == -math.inf
    first = verdict.violations[0]
    assert first.rule == rule
    words = text.replace(".", " .").split()
    assert first.word == words[first.index]  # it is the changed word that is named
    assert first.word in new.split()
    if old.split()[0] in ("Now", "and", "gives", "She"):  # where only one word was possible, it says which
        assert first.expected in old.split()
    assert judge(STORY).noisy_log_likelihood > verdict.noisy_log_likelihood > -math.inf


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("pronoun", "He thanks her", "He thanks him"),
        ("ending", "He thanks her", "She thanks her"),
        ("mood", "Both are glad", "Both are green"),
    ],
)
def test_the_other_endings(rule: str, old: str, new: str) -> None:
    good = replaced("They leave the garden", old)
    assert judge(good).valid
    assert judge(replaced(old, new, good)).violations[0].rule == rule


def rules(text: str, world: World = FULL) -> list[tuple[str, str]]:
    return [(found.rule, found.word) for found in judge(text, world).violations]


def test_it_finds_its_place_at_full_stops() -> None:
    assert rules(replaced("three red balls.", "three red.")) == [("object", ".")]  # one word missing: one fault
    assert rules(replaced(" in the garden. She gives", ". She gives"))[0] == ("grammar", ".")
    short = judge(replaced("She gives him one.", "She gives."))
    assert short.violations[0].rule == "pronoun"
    assert len(short.violations) <= 3  # the counts are unknown then, the rest is read as before
    too_long = rules(replaced("Tom in the garden.", "Tom in the garden and in the park."))
    assert too_long == [("grammar", word) for word in ("and", "in", "the", "park")]
    assert rules(replaced(" They leave the garden.", "")) == [("ending", "(end)")]
    assert rules(STORY + " " + STORY.split(". ")[0] + ".") == [
        ("end", word) for word in ("Mia", "has", "three", "red", "balls", ".")
    ]


def test_texts_that_are_no_stories() -> None:
    assert rules("") == [("name", "(end)")]
    for text in ("...", "????", "\x00\ud7ff", "Mia Mia Mia", "é" * 50, STORY * 3):
        verdict = judge(text)
        assert not verdict.valid
        assert math.isfinite(verdict.noisy_log_likelihood)
        assert verdict.perplexity > 1


def test_spacing() -> None:
    for text in (STORY.replace(" has", "  has", 1), STORY + "\n", " " + STORY, STORY.replace(".", " .", 1)):
        verdict = judge(text)
        assert [found.rule for found in verdict.violations] == ["spacing"]
        assert verdict.log_likelihood == -math.inf
        assert verdict.noisy_log_likelihood == pytest.approx(judge(STORY).noisy_log_likelihood + math.log(NOISE))
    assert judge(STORY.replace("ball ", "Ball ")).violations[0].rule == "object"  # letters count, too


def laws(text: str, world: World) -> list[float]:
    """The probability of each word of a valid story, and of its end."""
    teller = world.story()
    options, chances = next(teller), []
    for word in text.replace(".", " .").split():
        chances.append(options.words[word])
        options = teller.send(word)
    return [*chances, options.words[END]]


@pytest.mark.parametrize("noise", [0.001, 0.2])
def test_the_noisy_likelihood_of_a_story(noise: float) -> None:
    floor = noise / (len(FULL.vocabulary()) + 2)
    for text in stories(5, 30):
        verdict, chances = judge(text, FULL, noise), laws(text, FULL)
        assert verdict.log_likelihood == pytest.approx(sum(map(math.log, chances)))
        wanted = sum(math.log((1 - noise) * chance + floor) for chance in chances)
        assert verdict.noisy_log_likelihood == pytest.approx(wanted)
        assert verdict.perplexity == pytest.approx(math.exp(-wanted / len(chances)))


def damaged(words: list[str], rng: random.Random, edits: int) -> list[str]:
    """Replace, drop, insert or double some words."""
    words, pool = list(words), [*TINY.vocabulary(), "unknown"]
    for _ in range(edits):
        place = rng.randrange(len(words))
        kind = rng.randrange(4)
        if kind == 0:
            words[place] = rng.choice(pool)
        elif kind == 1 and len(words) > 1:
            del words[place]
        else:
            words.insert(place, rng.choice(pool) if kind == 2 else words[place])
    return words


@pytest.mark.parametrize("edits", [0, 1, 3, 12])
def test_the_noisy_judge_is_normalised(edits: int) -> None:
    """At every prefix, of stories whole and damaged, the next words, the unknown one and the end add up to one."""
    rng = random.Random(edits)
    events = [*TINY.vocabulary(), "unknown", END]
    for _ in range(6):
        words = damaged(TINY.draw(rng), rng, edits)
        for stop in range(0, len(words) + 1, 3):
            before = _read(words[:stop], TINY, 0.01).noisy_log_likelihood
            after = [_read([*words[:stop], event], TINY, 0.01).noisy_log_likelihood for event in events]
            assert math.fsum(math.exp(value - before) for value in after) == pytest.approx(1.0, abs=1e-9)


@functools.cache
def tiny_texts() -> frozenset[str]:
    found, open_ends = set(), [list[str]()]
    while open_ends:
        words = open_ends.pop()
        teller = TINY.story()
        options = next(teller)
        for word in words:
            options = teller.send(word)
        while len(options.words) == 1 and END not in options.words:
            words.append(next(iter(options.words)))
            options = teller.send(words[-1])
        if END in options.words:
            found.add(render(words))
        else:
            open_ends += [[*words, word] for word in options.words]
    return frozenset(found)


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_valid_exactly_when_the_world_can_write_it(seed: int, edits: int) -> None:
    rng = random.Random(seed)
    text = render(damaged(TINY.draw(rng), rng, edits))
    verdict = judge(text, TINY)
    assert verdict.valid == (text in tiny_texts())
    assert verdict.valid == math.isfinite(verdict.log_likelihood)


@given(st.text(max_size=60))
def test_any_text_can_be_judged(text: str) -> None:
    verdict = judge(text)
    assert not verdict.valid
    assert math.isfinite(verdict.noisy_log_likelihood)
