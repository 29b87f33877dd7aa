"""The world of sums: its problems, its reader and its judge."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.store import read_documents
from tsdfm.corpus.sums import EQUATION, SMALL, WORLDS, Sums, Verdict, judge, problems, read, sums_named
from tsdfm.errors import UserError

GOOD = Verdict(equations=1.0, follows=True, right=True)


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_the_judge_reads_every_problem_and_accepts_its_answer(world: Sums) -> None:
    for problem in problems(0, 5000, world=world):
        assert read(problem.prompt) == problem.sum
        assert judge(problem.prompt, problem.answer) == GOOD


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_a_changed_number_is_seen(world: Sums) -> None:
    rng = random.Random(7)
    for problem in problems(1, 5000, world=world):
        places = list(re.finditer(r"\d+", problem.answer))
        which = rng.randrange(len(places))
        place = places[which]
        other = str(int(place[0]) + rng.choice((-1, 1, 10)))
        answer = problem.answer[: place.start()] + other + problem.answer[place.end() :]
        verdict, last = judge(problem.prompt, answer), which == len(places) - 1
        assert verdict.right is not last
        assert verdict.follows is last
        assert (verdict.equations == 1.0) is last


def test_right_equations_of_another_problem_do_not_follow() -> None:
    prompt = "Mia has 6 plums. Tom gives her 3 more. She loses 2 of them. How many plums does Mia have now?"
    assert judge(prompt, "<<6+3=9>> <<9-2=7>> #### 7") == GOOD
    assert judge(prompt, "<<6-2=4>> <<4+3=7>> #### 7") == Verdict(1.0, follows=False, right=True)
    assert judge(prompt, "<<6+3=8>> <<9-2=7>> #### 7") == Verdict(0.5, follows=False, right=True)
    assert judge(prompt, "7") == Verdict(0.0, follows=False, right=False)
    assert judge(prompt, "#### 7 #### 8") == Verdict(0.0, follows=False, right=False)
    assert judge(prompt, "<<6/0=9>> #### 7").equations == 0.0


def test_an_aside_is_beside_the_point() -> None:
    plain = "Mia has 6 plums. Tom gives her 3 more. She loses 2 of them. How many plums does Mia have now?"
    aside = plain.replace("She loses", "Tom has 4 hats. She is 9 years old. She loses")
    assert read(aside) == read(plain)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mia has 6 plums.",
        "Mia has 6 plums. How many plums does Mia have now?",
        "She loses 2 of them. How many plums does Mia have now?",
        "Mia has 6 plums. She loses 8 of them. How many plums does Mia have now?",
        "Mia has 6 plums. She sings. She loses 2 of them. How many plums does Mia have now?",
        "Mia has 6 plums. She loses 2 of them. How many plums does Mia have now? She loses 2 of them.",
    ],
)
def test_what_is_no_problem_is_refused(text: str) -> None:
    assert read(text) is None
    with pytest.raises(UserError, match="no problem"):
        judge(text, "#### 1")


def test_problems_depend_on_seed_and_number_alone() -> None:
    several = list(problems(3, 10, world=SMALL))
    assert list(problems(3, 4, start=6, world=SMALL)) == several[6:]
    assert several != list(problems(4, 10, world=SMALL))
    assert len({sums_named(name).fingerprint for name in ("small", "large")}) == 2


def test_values_stay_inside_the_world() -> None:
    for problem in problems(0, 500, world=SMALL):
        numbers = [int(n) for line in EQUATION.findall(problem.answer) for n in (line[0], line[2], line[3])]
        assert max(numbers) <= SMALL.most
        assert min(numbers) >= 1


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(UserError, match="small"):
        sums_named("smal")


def test_a_corpus_of_sums_has_prompts_and_holds_out_whole_sums(tmp_path: Path) -> None:
    out = make_corpus(CorpusSettings(out=tmp_path / "corpus", name="sums:small", limit=3000, valid=0.1, seed=2))
    train, valid = (list(read_documents(out, split)) for split in ("train", "valid"))
    assert len(train) + len(valid) == 3000
    assert len(valid) > 150
    assert all(judge(document.prompt, document.text) == GOOD for document in [*train[:50], *valid[:50]])
    assert {str(read(document.prompt)) for document in train}.isdisjoint(str(read(d.prompt)) for d in valid)
