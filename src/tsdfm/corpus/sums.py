"""The world of sums: short word problems from a known grammar, with worked equations and an answer that can be checked.

    Mia has 6 plums. Tom gives her 3 more. Tom has 4 hats. She loses 2 of them. How many plums does Mia have now?
    she has <<6+3=9>> that makes <<9-2=7>> #### 7

A problem is a start, some steps of + − × ÷, perhaps a sentence that has nothing to do with it, and the question. Each
of them is worded in several ways, and so is the answer: what stands where in it depends on the words before. `read`
takes a problem apart again, so that `judge` can say of any answer whether its equations are right, whether they are
the steps of the question, and whether the answer is.

Held-out problems share no sum with the training ones: `Problem.sum`, as in 6+3-2, decides the split.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsdfm.corpus.world import FULL, noun
from tsdfm.errors import UserError
from tsdfm.settings import nearest

STARTS = (
    "{name} has {n} {things}.",
    "{name} starts with {n} {things}.",
    "There are {n} {things} in the bag of {name}.",
)
STEPS = {
    "+": ("{she} buys {n} more.", "{other} gives {her} {n} more.", "{she} finds {n} more."),
    "-": ("{she} gives {n} of them to {other}.", "{she} loses {n} of them.", "{she} sells {n} of them."),
    "*": ("The next day {she_} has {n} times as many.", "A wizard makes them {n} times as many."),
    "/": (
        "{she} makes {n} equal parts and keeps one.",
        "{she} shares them equally among {n} people, {herself} included.",
    ),
}
ASIDES = ("{other} has {n} {others}.", "{she} is {n} years old.", "It has rained for {n} days.")
QUESTIONS = ("How many {things} does {name} have now?", "How many {things} are left for {name}?")
SAYS = ("", "{she_} has ", "that makes ")  # before an equation
SIGNS = {"+": 3, "-": 3, "*": 1, "/": 1}  # how often each is drawn
EQUATION = re.compile(r"<<(\d+)([-+*/])(\d+)=(\d+)>>")
ANSWER = "#### "


class Step(NamedTuple):
    """One operation and its number."""

    sign: str
    number: int

    def apply(self, value: int) -> int | None:
        """What becomes of a value; none where that is no whole number above 0."""
        match self.sign:
            case "+":
                made = value + self.number
            case "-":
                made = value - self.number
            case "*":
                made = value * self.number
            case _:
                made = value // self.number if value % self.number == 0 else 0
        return made if made > 0 else None


class Sum(NamedTuple):
    """What a problem asks for."""

    start: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"{self.start}{''.join(f'{sign}{number}' for sign, number in self.steps)}"

    def values(self) -> list[int]:
        """The value after each step; it ends early where one is no whole number above 0."""
        found: list[int] = []
        value = self.start
        for step in self.steps:
            made = step.apply(value)
            if made is None:
                return found
            found.append(value := made)
        return found

    def answer(self, says: Sequence[str] = ()) -> str:
        """The worked answer; `says` are the words before each equation, if there are any."""
        values = self.values()
        lines = zip([self.start, *values], self.steps, values, strict=False)
        worked = [f"<<{before}{sign}{number}={after}>>" for before, (sign, number), after in lines]
        said = [f"{words}{each}" for words, each in zip(says or [""] * len(worked), worked, strict=True)]
        return f"{' '.join(said)} {ANSWER}{values[-1]}"


class Problem(NamedTuple):
    """A question in words, its worked answer and the sum behind it."""

    prompt: str
    answer: str
    sum: Sum


@dataclass(frozen=True)
class Verdict:
    """What the judge says of an answer: the share of its equations that hold (0 without any), whether they are the
    question's own steps in order, and whether the answer is right."""

    equations: float
    follows: bool
    right: bool


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A world of sums: how many steps, how large the numbers, and what they are about."""

    name: str
    steps: tuple[int, ...]
    most: int  # the largest value on the way
    largest: int  # the largest number that is added or taken away
    factors: tuple[int, ...]
    asides: float  # the chance of a sentence beside the point
    share: float = 1.0  # of the story world's names and things
    signs: str = "".join(SIGNS)
    ways: int | None = None  # how many wordings of each sentence are used; none: all

    @functools.cached_property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Women, men and things."""
        world = FULL.smaller(self.name, self.share, most=4)
        return world.women, world.men, world.objects

    def draw(self, rng: random.Random) -> Problem:
        """A problem drawn from the grammar."""
        while True:
            found = Sum(rng.randint(2, self.largest), self._steps(rng))
            values = found.values()
            if len(values) == len(found.steps) and max(found.start, *values) <= self.most:
                break
        women, men, things = self.words
        name, other = rng.sample(women + men, 2)
        thing, aside = rng.sample(things, 2)
        she, her, self_ = ("She", "her", "herself") if name in women else ("He", "him", "himself")

        def say(ways: tuple[str, ...], n: int = 0) -> str:
            return rng.choice(ways[: self.ways]).format(
                name=name, other=other, n=n, things=noun(n or 2, thing), others=noun(n, aside),
                she=she, she_=she.lower(), her=her, herself=self_,
            )  # fmt: skip

        parts = [say(STARTS, found.start), *(say(STEPS[sign], number) for sign, number in found.steps)]
        if rng.random() < self.asides:
            parts.insert(rng.randint(1, len(parts)), say(ASIDES, rng.randint(2, self.largest)))
        prompt = " ".join([*parts, say(QUESTIONS)])
        says = [rng.choice(SAYS).format(she_=she.lower()) for _ in found.steps]
        return Problem(prompt, found.answer(says), found)

    def _steps(self, rng: random.Random) -> tuple[Step, ...]:
        found = []
        for _ in range(rng.choice(self.steps)):
            sign = rng.choices(self.signs, weights=[SIGNS[sign] for sign in self.signs])[0]
            found.append(Step(sign, rng.choice(self.factors) if sign in "*/" else rng.randint(1, self.largest)))
        return tuple(found)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of a hundred problems."""
        told = [self.draw(random.Random(f"fingerprint {n}")) for n in range(100)]
        return hashlib.sha256(repr(told).encode()).hexdigest()


TINY = Sums(name="tiny", steps=(1, 2), most=15, largest=7, factors=(), asides=0.0, share=0.1, signs="+-", ways=2)
SMALL = Sums(name="small", steps=(2, 3), most=20, largest=9, factors=(2, 3), asides=0.25, share=0.2)
LARGE = Sums(name="large", steps=(2, 3, 4), most=100, largest=30, factors=(2, 3, 4, 5), asides=0.5)
WORLDS = {world.name: world for world in (TINY, SMALL, LARGE)}


def sums_named(name: str) -> Sums:
    """A world of sums by its name: `tiny` (what two cores learn in minutes), `small` or `large`."""
    if name not in WORLDS:
        raise UserError(f"unknown world of sums {name!r}{nearest(name, WORLDS)}")
    return WORLDS[name]


def problems(seed: int, count: int, start: int = 0, world: Sums = LARGE) -> Iterator[Problem]:
    """`count` problems from number `start` on. Problem i depends on the world, the seed and i alone."""
    for index in range(start, start + count):
        yield world.draw(random.Random(f"sum {seed} {index}"))


def _pattern(way: str) -> re.Pattern[str]:
    """What a wording can look like: any word for a name or thing, and its number."""
    return re.compile(re.sub(r"\\{(\w+)\\}", lambda m: r"(\d+)" if m[1] == "n" else r"[A-Za-z]+", re.escape(way)))


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """(start, a sign, aside or question, its pattern) of every wording."""
    kinds = {"start": STARTS, **STEPS, "aside": ASIDES, "question": QUESTIONS}
    return [(kind, _pattern(way)) for kind, ways in kinds.items() for way in ways]


def read(prompt: str) -> Sum | None:
    """The sum of a problem in words, or none if the grammar cannot write it.

    `X has n things.` at the front is the start; later on it is an aside, about someone else.
    """
    start, steps, asked = None, [], False
    for sentence in re.findall(r"[^.?]+[.?]", prompt):
        kinds = [(kind, found) for kind, way in _patterns() if (found := way.fullmatch(sentence.strip()))]
        if asked or not kinds:
            return None
        kind, found = kinds[0] if start is None else next(((k, f) for k, f in kinds if k != "start"), ("", kinds[0][1]))
        if kind == "start" and start is None:
            start = int(found[1])
        elif start is not None and kind in STEPS:
            steps.append(Step(kind, int(found[1])))
        elif start is not None and kind == "question":
            asked = True
        elif start is None or kind != "aside":
            return None
    made = None if start is None or not steps or not asked else Sum(start, tuple(steps))
    return made if made is not None and len(made.values()) == len(steps) else None


def judge(prompt: str, answer: str) -> Verdict:
    """Whether an answer is right, and how it gets there."""
    asked = read(prompt)
    if asked is None:
        raise UserError(f"this is no problem of the world of sums: {prompt[:80]!r}")
    lines = [(int(a), Step(sign, int(b)), int(c)) for a, sign, b, c in EQUATION.findall(answer)]
    holds = [b > 0 and Step(sign, b).apply(a) == c for a, (sign, b), c in lines]
    values = asked.values()
    want = list(zip([asked.start, *values], asked.steps, values, strict=False))
    _, found, last = answer.rpartition(ANSWER.strip())
    return Verdict(
        equations=sum(holds) / len(holds) if holds else 0.0,
        follows=lines == want,
        right=bool(found) and last.strip() == str(values[-1]),
    )
