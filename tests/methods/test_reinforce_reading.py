"""What Reinforce reads: a judge of any tokens place by place, and the network beside the student, which learns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from story_judges import bytes_judge, story_rows
from tsdfm.distil.policy.own import Own
from tsdfm.distil.policy.reading import places, stories_in
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.judges.inhouse import inhouse_judge, load_causal
from tsdfm.methods.reinforce import ReinforceLoop
from tsdfm.tokens.tokenizer import load_tokenizer


def read(rows: Tensor, reader: Any, tokens: Path) -> tuple[list[str], Any]:
    """The texts of rows, and what a judge says of their places."""
    stories = stories_in(rows, load_tokenizer(tokens), 1)
    texts = [story.text for story in stories]
    return texts, places(stories, reader.spelled(texts), rows.shape[1], 1)


def test_a_judge_of_the_same_tokens_is_read_place_by_place(tokens: Path, judge: Path) -> None:
    rows, model = story_rows(tokens), load_causal(judge, "cpu")
    over = load_tokenizer(tokens).end_of_text
    rows[0, 1] = over  # an empty text has an end, and its price
    rows[1, 1:][rows[1, 1:] == over] = int(rows[1, 1])  # and one is not ended
    texts, found = read(rows, inhouse_judge(judge, "cpu"), tokens)
    assert texts[0] == ""
    logs = model.logits(rows[:, :-1]).log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
    for n, (row, value, there, log) in enumerate(zip(rows, *found, logs, strict=True)):
        ends = (row[1:] == over).nonzero()[:, 0].tolist()
        end = 1 + ends[0] if ends else len(row) - 1
        assert there.nonzero()[:, 0].tolist() == [*range(1, end + 1)]
        if n != 1:  # that one is spelled otherwise than it would be encoded
            torch.testing.assert_close(value[1 : end + 1], log[:end], rtol=1e-4, atol=1e-4)
        assert bool((value[~there] == 0).all())


def test_a_judge_of_other_tokens_counts_at_the_same_characters(tokens: Path, tmp_path: Path) -> None:
    """Its token counts where its last character stands, and a text's places add up to its score."""
    rows, reader, own = story_rows(tokens), inhouse_judge(bytes_judge(tokens, tmp_path), "cpu"), load_tokenizer(tokens)
    texts, found = read(rows, reader, tokens)
    for text, row, value, score, spelled in zip(
        texts, rows, found.values, reader.score(texts), reader.spelled(texts), strict=True
    ):
        assert value.sum().item() == pytest.approx(-score.nll, rel=1e-5)
        at = 0
        for i in range(1, len(own.encode(text)) + 1):  # the characters of each place, one byte each here
            size = len(own.decode(row[i : i + 1]))
            assert value[i].item() == pytest.approx(-float(spelled.tokens[at : at + size].sum()), rel=1e-4, abs=1e-5)
            at += size
        assert at == len(text)


def test_bytes_that_are_no_text_do_not_shift_what_follows(tokens: Path, judge: Path) -> None:
    own = load_tokenizer(tokens)
    stray = [own.pieces.index(bytes([byte])) for byte in (0x80, 0x81)]
    rest = own.encode("The end.")
    row = torch.full((1, 40), own.end_of_text)
    row[0, 1 : 3 + len(rest)] = torch.tensor([*stray, *rest])
    (story,) = stories_in(row, own, 1)
    assert story.text == "\ufffd\ufffdThe end."
    assert story.where.tolist()[:3] == [1, 2, 2 + len(own.decode(rest[:1]))]
    assert story.where[-1] == len(story.text)


def test_places_behind_a_judges_context_are_not_read(tokens: Path, judge: Path) -> None:
    rows, whole = story_rows(tokens), inhouse_judge(judge, "cpu")
    _, found = read(rows, dataclasses.replace(whole, context=6), tokens)
    assert found.read.nonzero()[:, 1].max() == 5
    _, first = read(rows, dataclasses.replace(whole, start=None, end=None), tokens)
    assert not bool(first.read[:, :2].any())  # nothing is said of a first token without a start, nor of an end
    assert bool(first.read[:, 2].all())


def test_the_network_beside_the_student_learns_what_is_written(tokens: Path, judge: Path) -> None:
    """It says what a judge of its weights says, until it learns; and dropout is off."""
    rows, start = story_rows(tokens, 8), load_causal(judge, "cpu")
    texts = [story.text for story in stories_in(rows, start.tokenizer, 1)]
    start.net.blocks[0].dropout.p = 0.5  # type: ignore[union-attr]
    own = Own(start, ReinforceLoop(steps=20, device="cpu"), lr=1e-3, warmup=1)
    own.bind(Context(ema=None, world=Processes()))
    first = own.learn(texts, 0, [0] * 8)
    for mine, theirs in zip(first, inhouse_judge(judge, "cpu").spelled(texts), strict=True):
        assert (mine.ends, mine.closed, mine.begin) == (theirs.ends, True, 0)
        torch.testing.assert_close(mine.costs, theirs.costs, rtol=1e-4, atol=1e-4)
    for step in range(1, 20):
        last = own.learn(texts, step, [0] * 8)
    assert sum(float(one.costs.sum()) for one in last) < 0.8 * sum(float(one.costs.sum()) for one in first)


def test_the_network_beside_the_student_does_not_learn_what_is_given(tokens: Path, judge: Path) -> None:
    """A text of which all is given teaches the end alone, whatever it says; one that is not teaches every token."""
    texts = [story.text for story in stories_in(story_rows(tokens, 4), load_tokenizer(tokens), 1)]
    fell = []
    for given in ([len(text) for text in texts], [len(text) // 2 for text in texts], [0] * 4):
        own = Own(load_causal(judge, "cpu"), ReinforceLoop(steps=20, device="cpu"), lr=1e-3, warmup=1)
        own.bind(Context(ema=None, world=Processes()))
        costs = [own.learn(texts, step, given) for step in range(20)]
        halves = [len(text) // 2 for text in texts]
        parts = torch.zeros(2, 3)  # before and after, of the first half, the second and the end
        for row, said in zip(parts, (costs[0], costs[-1]), strict=True):
            for one, half in zip(said, halves, strict=True):
                early = torch.tensor([end <= half for end in one.ends])
                row += torch.stack([one.tokens[early].sum(), one.tokens[~early].sum(), one.costs[-1]])
        fell.append((parts[1] / parts[0]).tolist())
    (first, second, end), half, whole = fell
    assert min(first, second) > 0.95 > end
    assert half[0] > 0.9 > 0.8 > half[1]
    assert max(whole[:2]) < 0.8
