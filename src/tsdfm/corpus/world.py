"""The story world: English micro-stories from a known grammar, as many as you like from a seed.

A story is a coroutine that yields the law of its next word and is sent the word that came. One definition therefore
serves three ends: the sampler sends words drawn from the law, the judge sends the words of a text it is given, and the
exact likelihood is the product of the laws on the way.

    Mia has three red balls. She meets Tom in the garden. She gives him one. Now Tom has one red ball and Mia has two.
    They leave the garden.

What has to agree over the length of a story: names and pronouns, the object and its colour, the place, singular and
plural, the counts, and who has how many.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsdfm.errors import UserError
from tsdfm.settings import nearest

END = ""  # the law's word for «the story is over»
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
MEETS = ("meets", "sees", "finds", "visits")
MOODS = ("happy", "tired", "glad", "calm", "proud", "hungry", "sleepy", "quiet")
FIXED = "has . She He in the gives her him Now and thanks They leave Both are"


class Law(NamedTuple):
    """What may come next: the probability of each word, and the rule that decides it."""

    rule: str
    words: dict[str, float]


Story = Generator[Law, str, None]


@functools.cache
def law(rule: str, words: tuple[str, ...], skew: float = 0.0) -> Law:
    """A law over `words`; `skew` > 0 makes earlier words more frequent, p ∝ 1/(rank + 1/skew)."""
    weights = [1.0 / (rank + 1.0 / skew) if skew else 1.0 for rank in range(len(words))]
    total = sum(weights)
    return Law(rule, {word: weight / total for word, weight in zip(words, weights, strict=True)})


def fixed(text: str, rule: str = "grammar") -> Story:
    """Words that can only be these."""
    for word in text.split():
        yield law(rule, (word,))


def noun(count: int, thing: str) -> str:
    """Singular for one, plural otherwise."""
    if count == 1:
        return thing
    return thing + ("es" if thing.endswith(("x", "sh", "ch")) else "s")


@dataclass(frozen=True, kw_only=True)
class World:
    """The people, things and places stories are about. The grammar is the same in every world."""

    name: str
    women: tuple[str, ...]
    men: tuple[str, ...]
    objects: tuple[str, ...]
    colours: tuple[str, ...]
    places: tuple[str, ...]
    most: int = 6  # the largest count, at most six

    def story(self) -> Story:
        """One story, as the law of each next word given the words so far."""
        people = self.women + self.men
        giver = yield law("name", people, skew=0.1)
        yield from fixed("has")
        count = NUMBERS.index((yield law("count", NUMBERS[2 : self.most + 1])))
        colour = yield law("colour", self.colours, skew=0.2)
        plural = yield law("object", tuple(noun(count, thing) for thing in self.objects), skew=0.1)
        thing = next(thing for thing in self.objects if noun(count, thing) == plural)
        yield from fixed(".")

        she, her = self.pronouns(giver)
        yield from fixed(she, "pronoun")
        yield law("verb", MEETS)
        taker = yield law("name", tuple(name for name in people if name != giver), skew=0.1)
        yield from fixed("in the")
        place = yield law("place", self.places, skew=0.2)
        yield from fixed(".")

        he, him = self.pronouns(taker)
        yield from fixed(she, "pronoun")
        yield from fixed("gives")
        yield from fixed(him, "pronoun")
        given = NUMBERS.index((yield law("count", NUMBERS[1:count])))
        yield from fixed(".")

        yield from fixed("Now")
        yield from self.owns(taker, given)
        yield from fixed(colour, "colour")
        yield from fixed(noun(given, thing), "object")
        yield from fixed("and")
        yield from self.owns(giver, count - given)
        yield from fixed(".")
        yield from self.ending(place, he, her)
        yield law("end", (END,))

    def pronouns(self, name: str) -> tuple[str, str]:
        """Subject (at the head of a sentence) and object pronoun."""
        return ("She", "her") if name in self.women else ("He", "him")

    def owns(self, name: str, count: int) -> Story:
        """`Tom has two`."""
        yield from fixed(name, "name")
        yield from fixed("has")
        yield from fixed(NUMBERS[count], "count")

    def ending(self, place: str, he: str, her: str) -> Story:
        """The last sentence: thanks, a mood, or the way out of the place where they met."""
        first = yield law("ending", ("They", he, "Both"), skew=1.0)
        if first == he:
            yield from fixed("thanks")
            yield from fixed(her, "pronoun")
        elif first == "They":
            yield from fixed("leave the")
            yield from fixed(place, "place")
        else:
            yield from fixed("are")
            yield law("mood", MOODS)
        yield from fixed(".")

    def vocabulary(self) -> list[str]:
        """Every word the grammar can write, in a fixed order."""
        plurals = tuple(noun(2, thing) for thing in self.objects)
        groups = (self.women, self.men, self.objects, plurals, self.colours, self.places)
        return [w for group in (*groups, NUMBERS[1 : self.most + 1], MEETS, MOODS, FIXED.split()) for w in group]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what the world writes: its words, and a hundred stories with their likelihood."""
        told = [self.draw(random.Random(f"fingerprint {n}")) for n in range(100)]
        content = repr((self.vocabulary(), told, [likelihood(self, words) for words in told]))
        return hashlib.sha256(content.encode()).hexdigest()

    def draw(self, rng: random.Random) -> list[str]:
        """The words of one story drawn from the grammar."""
        teller = self.story()
        words: list[str] = []
        options = next(teller)
        while True:
            choices = list(options.words)
            word = rng.choices(choices, weights=list(options.words.values()))[0] if len(choices) > 1 else choices[0]
            if word == END:
                return words
            words.append(word)
            options = teller.send(word)

    def smaller(self, name: str, share: float, most: int) -> World:
        """A world of the same grammar with the first `share` of each list, and counts up to `most`."""

        def cut(words: tuple[str, ...]) -> tuple[str, ...]:
            return words[: max(2, round(len(words) * share))]

        return World(
            name=name,
            women=cut(self.women),
            men=cut(self.men),
            objects=cut(self.objects),
            colours=cut(self.colours),
            places=cut(self.places),
            most=most,
        )


def likelihood(world: World, words: Sequence[str]) -> float:
    """The probability of a story's words, the end included."""
    teller, chance = world.story(), 1.0
    options = next(teller)
    for word in words:
        chance *= options.words[word]
        options = teller.send(word)
    return chance * options.words[END]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FULL = World(
    name="full",
    women=_words(
        "Mia Anna Lucy Emma Sara Nina Rosa Clara Ella Julia Grace Alice Maria Laura Olga Ivy Hanna Tina Vera Zoe"
    ),
    men=_words("Tom Ben Max Paul Leo Sam Jack Oscar Hugo Peter Karl Felix Adam Noah Simon David Frank Otto Ivan Luke"),
    objects=_words(
        "ball book hat cup kite coin boat drum bell lamp ring card shell stone brick plum pear nut fig egg bun pen key "
        "map doll toy flag rope sock mug jar bowl spoon fork chair box bag coat shirt belt"
    ),
    colours=_words("red blue green white black yellow brown pink grey orange purple golden silver"),
    places=_words(
        "garden house park kitchen school forest shop barn village market library station castle museum harbour mill "
        "square field valley theatre church tower bakery hall yard"
    ),
)
SMALL = FULL.smaller("small", 0.4, most=4)
WORLDS = {world.name: world for world in (FULL, SMALL)}


def world_named(name: str) -> World:
    """A world by its name: `full` (about 200 words) or `small` (about 90, what the demo learns in minutes)."""
    if name not in WORLDS:
        raise UserError(f"unknown story world {name!r}{nearest(name, WORLDS)}")
    return WORLDS[name]


def world_of_corpus(name: str | None) -> str:
    """The world that a corpus of this name is drawn from, as in `world:small`; of other texts, ''."""
    kind, _, world = (name or "").partition(":")
    return world if kind == "world" else ""


def render(words: Sequence[str]) -> str:
    """Words as text: a full stop follows its word without a space."""
    return " ".join(words).replace(" .", ".")


def stories(seed: int, count: int, start: int = 0, world: World = FULL) -> Iterator[str]:
    """`count` stories from number `start` on. Story i depends on the world, the seed and i alone."""
    for index in range(start, start + count):
        yield render(world.draw(random.Random(f"story {seed} {index}")))
