"""The story world as a judge: the exact judge's numbers, word by word."""

from __future__ import annotations

import math
import random

import pytest

from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import SMALL, render
from tsdfm.errors import UserError
from tsdfm.judges import Judge, judge_from
from tsdfm.judges.world import WorldJudge

STORY = render(SMALL.draw(random.Random(5)))


@pytest.mark.parametrize(
    "text",
    [STORY, STORY.replace(" has ", " have ", 1), STORY.replace(" ", "  ", 1), "", "Once upon a time.", STORY + STORY],
)
def test_the_sum_is_the_exact_judges(text: str) -> None:
    (score,) = WorldJudge(SMALL).score([text])
    verdict = judge(text, SMALL)
    assert score.nll == pytest.approx(-verdict.noisy_log_likelihood, rel=1e-12)
    assert score.tokens == verdict.events
    assert score.characters == len(text)


def test_a_prefix_takes_its_words_out_and_nothing_else() -> None:
    whole, cut = STORY, STORY.index(".") + 1
    read = WorldJudge(SMALL)
    (all_of_it,) = read.score([whole])
    (rest,) = read.score([whole], prefixes=[whole[:cut]])
    words = len(whole[:cut].replace(".", " .").split())
    assert all_of_it.tokens - rest.tokens == words
    assert rest.characters == len(whole) - cut
    law = SMALL.story()
    now, nats = next(law), 0.0
    floor = 0.001 / (len(SMALL.vocabulary()) + 2)
    for word in whole[:cut].replace(".", " .").split():
        nats -= math.log(0.999 * now.words[word] + floor)
        now = law.send(word)
    assert all_of_it.nll - rest.nll == pytest.approx(nats)


def test_hits_count_the_likeliest_words() -> None:
    words, law = [], SMALL.story()
    now = next(law)
    while True:  # the story that is always the likeliest
        best = max(now.words, key=now.words.__getitem__)
        if not best:
            break
        words.append(best)
        now = law.send(best)
    (score,) = WorldJudge(SMALL).score([render(words)])
    assert score.hits == score.tokens == len(words) + 1


def test_each_world_has_a_fingerprint_of_its_own() -> None:
    made = judge_from("world:small")
    assert isinstance(made, Judge)
    assert judge_from("world:full").fingerprint != made.fingerprint
    with pytest.raises(UserError, match="unknown story world"):
        judge_from("world:tiny")
