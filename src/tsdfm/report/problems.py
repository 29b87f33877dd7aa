"""Problems to be answered: from held-out rows with a prompt or from a file, and what judges say of many answers.

A problem's row holds the anchor, the prompt and a newline, as in training; what comes after is written. In the world of
sums its exact judge decides (`corpus.sums`); of other problems the number that an answer gives (`judges.answers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tsdfm.corpus import sums
from tsdfm.corpus.files import Document, read_table
from tsdfm.errors import UserError
from tsdfm.judges.answers import equations, number_in, pass_at, right
from tsdfm.report.bench import spread
from tsdfm.report.cells import Cell, Prefixes
from tsdfm.report.rows import Plain
from tsdfm.store.manifest import input_sha256
from tsdfm.tokens.rows import TokenRows

MOST_KNOWN = 100_000  # training answers that the chance level is counted from


@dataclass(frozen=True)
class Problems:
    """P problems that fit their rows [P, L], of which the first `given` [P] tokens are known; `key` decides them.

    `too_long` more are longer than a row: nothing can be written after them, and they count as unsolved.
    """

    key: Plain
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    rows: Tensor
    given: Tensor
    too_long: int = 0

    @property
    def numbers(self) -> list[Fraction]:
        """The right answers."""
        return [number for answer in self.answers if (number := number_in(answer)) is not None]

    @property
    def of_sums(self) -> bool:
        """Are they all of the world of sums?"""
        return all(sums.read(prompt) is not None for prompt in self.prompts)

    def asked(self, times: int) -> Prefixes:
        """Every problem `times` times, one after another: answer j of the p-th is text p·times + j."""
        rows, given = (x.repeat_interleave(times, 0) for x in (self.rows, self.given))
        return Prefixes({**self.key, "times": times}, rows, given, torch.full_like(given, rows.shape[1] - 1))


def held_out_problems(rows: TokenRows, most: int | None) -> Problems:
    """The held-out rows of a tokens folder, or `most` of them evenly spread: in the world of sums, over its sums."""
    picks = spread(len(rows), most or len(rows))
    if most is not None and sums.read(next(texts_of(rows, [0]))[0]) is not None:
        picks = by_sums([prompt for prompt, _ in texts_of(rows, range(len(rows)))], most)
    prompts, answers = zip(*texts_of(rows, picks), strict=True)
    taken, given = torch.from_numpy(rows.take(picks).astype("int64")), torch.from_numpy(rows.given(picks).sum(1))
    content = sha256(taken.numpy().tobytes() + given.numpy().tobytes()).hexdigest()  # the same in a folder made again
    key = {"held out": content[:16], "problems": len(picks)}
    check_answers(prompts, answers, str(rows.folder))
    return Problems(key, prompts, answers, taken, given)


def by_sums(prompts: Sequence[str], most: int) -> list[int]:
    """`most` of the problems, every sum once before any is there twice: short sums are far more frequent than others.

    >>> ask = "Mia has {} plums. She loses {} of them. How many plums does Mia have now?".format
    >>> by_sums([ask(6, 2), ask(6, 2), ask(9, 1), ask(6, 2)], 3)
    [0, 1, 2]
    """
    seen, turns = Counter[str](), list[int]()
    for prompt in prompts:
        turns.append(seen[asked := str(sums.read(prompt))])
        seen[asked] += 1
    if most < len(seen):
        firsts = [i for i, turn in enumerate(turns) if turn == 0]
        return [firsts[i] for i in spread(len(firsts), most)]
    return sorted(sorted(range(len(prompts)), key=turns.__getitem__)[:most])


def problems_in(path: Path, rows: TokenRows, prompt: str, field: str, most: int | None) -> Problems:
    """The problems of a .jsonl, .csv or .parquet file, or `most` of them evenly spread, as rows of a tokens folder."""
    found = read_problems(path, prompt, field)
    found = [found[i] for i in spread(len(found), most or len(found))]
    kept, made, given = list[int](), list[list[int]](), list[int]()
    for number, one in enumerate(found):
        ids = [rows.end_of_text] * rows.anchor + list(rows.tokenizer.encode(f"{one.prompt}\n"))
        if len(ids) < rows.length:
            kept.append(number)
            given.append(len(ids))
            made.append(ids + [rows.end_of_text] * (rows.length - len(ids)))
    if not kept:
        raise UserError(f"no problem in {path} fits a row of {rows.length} tokens with room for its answer")
    key = {"file": input_sha256(path)[:16], "fields": [prompt, field], "problems": len(found), "length": rows.length}
    chosen = [found[number] for number in kept]
    prompts, answers = tuple(one.prompt for one in chosen), tuple(one.text for one in chosen)
    tokens = (torch.tensor(made), torch.tensor(given))
    return Problems(key, prompts, answers, *tokens, len(found) - len(kept))


def read_problems(path: Path, prompt: str, field: str) -> list[Document]:
    """The problems of a .jsonl, .csv or .parquet file with their answers, if each has one that is a number."""
    found = list(read_table(path, field, prompt))
    if not found:
        raise UserError(f"{path} holds no problem: give a file with a JSON object in each line")
    check_answers([one.prompt for one in found], [one.text for one in found], str(path))
    return found


def check_answers(prompts: Sequence[str], answers: Sequence[str], where: str) -> None:
    """Refuse an answer that is no number."""
    missing = next((p for p, a in zip(prompts, answers, strict=True) if number_in(a) is None), None)
    if missing is not None:
        raise UserError(f"{where} has no number as the answer to {missing[:60]!r}: answers are compared as numbers")


def texts_of(rows: TokenRows, picks: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The prompt of each of some rows, without the newline that ends it, and the answer."""
    for row, held in zip(rows.take(picks), rows.given(picks), strict=True):
        answer, decode = row[~held], rows.tokenizer.decode
        yield decode(row[held][rows.anchor :]).removesuffix("\n"), decode(answer[answer != rows.end_of_text])


def training_numbers(rows: TokenRows) -> list[Fraction]:
    """The numbers that the training answers give, of all rows or of `MOST_KNOWN` spread over them."""
    texts = texts_of(rows, spread(len(rows), MOST_KNOWN))
    return [number for _, answer in texts if (number := number_in(answer)) is not None]


@dataclass(frozen=True)
class Marks:
    """What is right of n answers to each of P problems: `right`, and `exact` (its equations too), counts [P].

    In the world of sums also the share of equations that hold, and how many answers follow the question's steps.
    """

    times: int
    right: np.ndarray
    exact: np.ndarray
    holds: np.ndarray | None = None
    follows: np.ndarray | None = None

    def passes(self, k: int, *, exact: bool = False) -> np.ndarray:
        """pass@k of each problem [P]; 0 of those that were too long for a row."""
        return np.array([pass_at(k, self.times, int(count)) for count in (self.exact if exact else self.right)])


def mark(problems: Problems, cell: Cell, times: int) -> Marks:
    """Judge the texts of a cell, `times` for each problem in turn."""
    written = cell.continuations()
    of_sums, found = problems.of_sums, np.zeros((len(problems.prompts) + problems.too_long, 4))
    for p, (prompt, expected) in enumerate(zip(problems.prompts, problems.answers, strict=True)):
        for answer in written[p * times : (p + 1) * times]:
            if of_sums:
                said = sums.judge(prompt, answer)
                found[p] += said.right, said.right and said.follows, said.equations, said.follows
            else:
                good = right(answer, expected)
                found[p] += good, good and equations(answer) == equations(expected), 0, 0
    more = (found[:, 2] / times, found[:, 3] / times) if of_sums else ()
    return Marks(times, found[:, 0], found[:, 1], *more)
