"""The story world: what it draws, with which probability, and that the same seed always tells the same story."""

from __future__ import annotations

import functools
import itertools
import math
import random
import re

import pytest

from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import END, FULL, MEETS, MOODS, NUMBERS, SMALL, World, noun, render, stories, world_named
from tsdfm.errors import UserError

TINY = World(
    name="tiny", women=("Mia",), men=("Tom", "Ben"), objects=("ball", "box"), colours=("red",), places=("park",)
)


@functools.cache
def all_stories(world: World) -> dict[str, float]:
    """Every story with its probability, by walking the coroutine down each of its branches."""
    found: dict[str, float] = {}
    open_ends: list[list[str]] = [[]]
    while open_ends:
        words = open_ends.pop()
        teller, chance = world.story(), 1.0
        options = next(teller)
        for word in words:
            chance *= options.words[word]
            options = teller.send(word)
        while len(options.words) == 1 and END not in options.words:
            (word,) = options.words
            chance *= options.words[word]
            words.append(word)
            options = teller.send(word)
        if END in options.words:
            assert options.words == {END: 1.0}
            assert render(words) not in found
            found[render(words)] = chance
        else:
            open_ends += [[*words, word] for word in options.words]
    return found


STORY = re.compile(
    r"(\w+) has (\w+) (\w+) (\w+)\. (She|He) (\w+) (\w+) in the (\w+)\. (She|He) gives (her|him) (\w+)\. "
    r"Now (\w+) has (\w+) (\w+) (\w+) and (\w+) has (\w+)\. "
    r"(?:(?P<thanks>She|He) thanks (?P<whom>her|him)|They leave the (?P<left>\w+)|Both are (?P<mood>\w+))\."
)


def ranked(words: tuple[str, ...], word: str, skew: float) -> float:
    """p ∝ 1/(rank + 1/skew)."""
    weights = [1 / (rank + 1 / skew) for rank in range(len(words))]
    return weights[words.index(word)] / sum(weights)


def check_and_weigh(world: World, text: str) -> float:
    """The rules in plain Python, apart from the coroutine: asserts that they hold and returns the probability."""
    found = STORY.fullmatch(text)
    assert found, text
    giver, many, colour, things, she, verb, taker, place, she_2, him, some, who, one, hue, piece, rest, left = (
        found.groups()[:17]
    )
    count, given = NUMBERS.index(many), NUMBERS.index(some)
    subject = lambda name: "She" if name in world.women else "He"  # noqa: E731
    objective = lambda name: "her" if name in world.women else "him"  # noqa: E731
    thing = next(thing for thing in world.objects if noun(2, thing) == things)
    assert giver != taker
    assert she == she_2 == subject(giver)
    assert him == objective(taker)
    assert (who, one, hue, piece) == (taker, some, colour, noun(given, thing))
    assert (rest, NUMBERS.index(left)) == (giver, count - given)
    assert 2 <= count <= world.most
    assert 1 <= given < count
    people = world.women + world.men
    others = tuple(name for name in people if name != giver)
    chance = ranked(people, giver, 0.1) * ranked(others, taker, 0.1) / (world.most - 1) / (count - 1)
    chance *= ranked(world.colours, colour, 0.2) * ranked(world.objects, thing, 0.1) * ranked(world.places, place, 0.2)
    chance *= (verb in MEETS) / len(MEETS)
    endings = ("left", "thanks", "mood")
    chance *= ranked(endings, next(name for name in endings if found[name]), 1.0)
    if found["thanks"]:
        assert (found["thanks"], found["whom"]) == (subject(taker), objective(giver))
    elif found["left"]:
        assert found["left"] == place
    else:
        chance *= (found["mood"] in MOODS) / len(MOODS)
    return chance


def test_all_stories_of_a_tiny_world() -> None:
    found = all_stories(TINY)
    # giver and taker 3·2, counts 1+2+3+4+5, verbs 4, objects 2, endings 1 + 1 + 8
    assert len(found) == 6 * 15 * 4 * 2 * 10
    assert math.isclose(math.fsum(found.values()), 1.0, rel_tol=1e-12)
    for text, chance in found.items():
        assert math.isclose(check_and_weigh(TINY, text), chance, rel_tol=1e-12)
    for text in itertools.islice(found, 0, None, 29):
        verdict = judge(text, TINY)
        assert verdict.valid
        assert math.isclose(verdict.log_likelihood, math.log(found[text]), rel_tol=1e-12)


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_drawn_stories_keep_the_rules(world: World) -> None:
    for text in stories(3, 300, world=world):
        chance = check_and_weigh(world, text)
        verdict = judge(text, world)
        assert verdict.valid
        assert math.isclose(verdict.log_likelihood, math.log(chance), rel_tol=1e-12)


def test_draws_follow_the_law() -> None:
    """The mean surprise of drawn stories is the entropy, and each giver comes as often as the law says."""
    found, count = all_stories(TINY), 3000
    drawn = list(stories(0, count, world=TINY))
    entropy = -math.fsum(p * math.log(p) for p in found.values())
    spread = math.sqrt(math.fsum(p * (math.log(p) + entropy) ** 2 for p in found.values()) / count)
    assert abs(-sum(math.log(found[text]) for text in drawn) / count - entropy) < 4 * spread
    people = TINY.women + TINY.men
    chi_square = 0.0
    for name in people:
        wanted = count * ranked(people, name, 0.1)
        chi_square += (sum(text.startswith(name) for text in drawn) - wanted) ** 2 / wanted
    assert chi_square < 18.4  # two degrees of freedom, one in ten thousand


def test_the_vocabulary_is_what_stories_use() -> None:
    used = {word for text in all_stories(TINY) for word in text.replace(".", " .").split()}
    assert used == set(TINY.vocabulary())
    for world in (TINY, SMALL, FULL):
        words = world.vocabulary()
        assert len(words) == len(set(words))  # a word in two roles would be counted twice by the judge
    assert len(SMALL.vocabulary()) < len(FULL.vocabulary())
    for name in ("women", "men", "objects", "colours", "places"):
        assert getattr(FULL, name)[: len(getattr(SMALL, name))] == getattr(SMALL, name)


def test_a_story_depends_on_seed_and_number_alone() -> None:
    whole = list(stories(7, 20))
    assert list(stories(7, 5, start=11)) == whole[11:16]
    state = random.getstate()
    random.seed(1)
    assert list(stories(7, 20)) == whole
    random.setstate(state)
    assert len(set(whole)) == 20
    assert not set(whole) & set(stories(8, 20))
    assert list(stories(7, 0)) == []
    # a corpus made today must be the corpus made next year
    assert next(stories(0, 1)) == (
        "Ben has four green drums. He finds Paul in the village. He gives him three. "
        "Now Paul has three green drums and Ben has one. They leave the village."
    )


def test_drawing_leaves_the_shared_laws_alone() -> None:
    before = list(stories(1, 3))
    for text in stories(2, 50):
        judge(text)
    assert list(stories(1, 3)) == before


def test_plurals() -> None:
    assert [noun(count, "ball") for count in (1, 2, 6)] == ["ball", "balls", "balls"]
    assert [noun(2, thing) for thing in ("box", "brush", "torch")] == ["boxes", "brushes", "torches"]


def test_worlds_by_name() -> None:
    assert world_named("small") is SMALL
    with pytest.raises(UserError, match="did you mean 'small'"):
        world_named("smal")
