"""Answers to questions: the number a text gives, whether it is the right one, pass@k, and what chance would give.

    pass@k = mean over problems of 1 − C(n − c, k) / C(n, k)        n answers a problem, c of them right

is the unbiased estimate of the chance that one of k answers is right. Two rows of every table ignore the question:
drawing k answers from the histogram of the training answers solves a problem with answer a with probability
1 − (1 − p(a))^k, and trying the k commonest answers in turn solves it if a is among them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from math import comb

from tsdfm.errors import UserError

WHOLE = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"
NUMBER = re.compile(rf"(?<![\w.])(?P<minus>[-−]?)(?:\$\s?)?(?P<digits>(?:{WHOLE})(?:\.\d+)?|\.\d+)")
MARK = "####"
EQUATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")


def number_in(text: str) -> Fraction | None:
    """The answer a text gives: the first number after its last `####`, or without a mark the last number there is.

    >>> number_in("She has 1,200 left. #### $1,200.50"), number_in("so 3 - 5 makes -2 degrees.")
    (Fraction(2401, 2), Fraction(-2, 1))
    """
    _, mark, after = text.rpartition(MARK)
    found = list(NUMBER.finditer(after if mark else text))
    if not found:
        return None
    number = found[0] if mark else found[-1]
    value = Fraction(Decimal(number["digits"].replace(",", "")))  # a Decimal may have thousands of digits
    return -value if number["minus"] else value


def right(answer: str, expected: str) -> bool:
    """Do two texts give the same number? A text without one gives no answer."""
    given = number_in(answer)
    return given is not None and given == number_in(expected)


def equations(text: str) -> list[tuple[str, str]]:
    """The worked equations of a text, `<<48/2=24>>`, as what stands left and right of the sign, without spaces."""
    return [(left.replace(" ", ""), value.replace(" ", "")) for left, value in EQUATION.findall(text)]


def pass_at(k: int, answers: int, correct: int) -> float:
    """1 − C(n − c, k)/C(n, k) of one problem, for n answers of which c are right.

    >>> pass_at(1, 4, 1), pass_at(4, 4, 1)
    (0.25, 1.0)
    """
    if not 1 <= k <= answers:
        raise UserError(f"pass@{k} needs at least {k} answers a problem, and there are {answers}")
    if not 0 <= correct <= answers:
        raise UserError(f"{correct} of {answers} answers cannot be right")
    return 1.0 - comb(answers - correct, k) / comb(answers, k)


def by_histogram(known: Iterable[Fraction], asked: Sequence[Fraction], k: int) -> list[float]:
    """For each asked problem, the chance that one of k answers drawn from the known answers is right."""
    counts = Counter(known)
    total = counts.total()
    if not total:
        raise UserError("the chance level needs at least one training answer")
    return [1.0 - (1.0 - counts[answer] / total) ** k for answer in asked]


def by_commonest(known: Iterable[Fraction], asked: Sequence[Fraction], k: int) -> list[float]:
    """For each asked problem, 1 if its answer is among the k commonest known ones, the smaller first of equals."""
    ranked = sorted(Counter(known).items(), key=lambda pair: (-pair[1], pair[0]))
    tried = {answer for answer, _ in ranked[:k]}
    return [float(answer in tried) for answer in asked]
