"""Extraction of numbers on written cases, pass@k against brute force, and the chance levels."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from tsdfm.errors import UserError
from tsdfm.judges.answers import by_commonest, by_histogram, equations, number_in, pass_at, right

CASES = [
    ("#### 72", "72"),
    ("####72", "72"),
    ("#### 1,234", "1234"),
    ("#### 1,234,567", "1234567"),
    ("#### $18", "18"),
    ("#### $ 18", "18"),
    ("#### -5", "-5"),
    ("#### −5", "-5"),
    ("#### -$5", "-5"),
    ("#### 0.25", "1/4"),
    ("#### 1,200.50", "2401/2"),
    ("#### 10%", "10"),
    ("#### 12 apples", "12"),
    ("#### 12.", "12"),
    ("#### 007", "7"),
    ("#### 0", "0"),
    ("#### 3.0", "3"),
    ("#### 5 or 6", "5"),
    ("#### 4\n#### 9", "9"),
    ("She has 3 + 4 = 7 plums.\n#### 7", "7"),
    ("<<3+4=7>> #### 8", "8"),
    ("The answer is 42.", "42"),
    ("The answer is 42", "42"),
    ("She paid $3.50.", "7/2"),
    ("It fell to -2 degrees.", "-2"),
    ("3 apples and 4 pears", "4"),
    ("That makes 1,000,000 people", "1000000"),
    ("12,34", "34"),
    ("1,2345", "2345"),
    ("in 2024, 17", "17"),
    ("a 50% share", "50"),
    ("12:30", "30"),
    ("3/4", "4"),
    ("x2 5", "5"),
    ("10-3", "3"),
    ("10 - 3", "3"),
    ("10 -3", "-3"),
    ("(7)", "7"),
    ("[7]", "7"),
    ("=7", "7"),
    ("7!", "7"),
    ("7kg", "7"),
    ("7 kg", "7"),
    ("$7", "7"),
    ("7.", "7"),
    ("7, and done", "7"),
    ("seven", None),
    ("", None),
    ("####", None),
    ("#### none", None),
    ("5 #### none", None),
    ("#### seven 7", "7"),
    ("abc123", None),
    ("#### 1 000", "1"),
    ("#### 2.5 hours", "5/2"),
    ("#### 100,000", "100000"),
    ("#### $1,000,000.00", "1000000"),
    ("She has 5 left, he has 6 left.", "6"),
    ("Total: 3\n\n", "3"),
    ("9" * 30, "9" * 30),
    ("#### .5", "1/2"),
    ("It costs $.75", "3/4"),
    ("a change of -.5 degrees", "-1/2"),
    ("version 1.2.3", "6/5"),
    ("and so on...5", None),
]


@pytest.mark.parametrize(("text", "want"), CASES)
def test_the_number_of_a_text(text: str, want: str | None) -> None:
    assert number_in(text) == (None if want is None else Fraction(want))


def test_a_number_of_thousands_of_digits_is_a_number() -> None:
    """Python refuses to read a whole number of more than 4 300 digits from a text."""
    assert number_in("#### " + "9" * 6000) == Fraction(10**6000 - 1)
    assert right("1" * 6000, "#### " + "1" * 6000)


def test_equality_is_of_numbers() -> None:
    assert right("#### 3.0", "#### 3")
    assert right("so it is 1,000", "#### 1000")
    assert not right("#### 3", "#### 4")
    assert not right("none", "none")


def test_equations_are_read() -> None:
    text = "Natalia sold 48/2 = <<48/2=24>>24 clips. <<48 + 24 = 72>>72"
    assert equations(text) == [("48/2", "24"), ("48+24", "72")]


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_pass_at_k_is_the_mean_over_all_choices(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        marks = [i < c for i in range(n)]
        chosen = list(itertools.combinations(marks, k))
        assert pass_at(k, n, c) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-12)


def test_pass_at_k_refuses_too_few_answers() -> None:
    with pytest.raises(UserError, match="at least 8"):
        pass_at(8, 4, 1)
    with pytest.raises(UserError, match="cannot be right"):
        pass_at(1, 4, 5)


def test_chance_by_histogram_is_that_of_all_draws() -> None:
    known = [Fraction(n) for n in (1, 1, 2, 3)]
    for answer, k in itertools.product((1, 2, 9), (1, 2, 3)):
        draws = list(itertools.product(known, repeat=k))
        want = sum(Fraction(answer) in draw for draw in draws) / len(draws)
        assert by_histogram(known, [Fraction(answer)], k) == pytest.approx([want])
    with pytest.raises(UserError, match="at least one"):
        by_histogram([], [Fraction(1)], 1)


def test_the_commonest_are_tried_in_turn() -> None:
    known = [Fraction(n) for n in (5, 5, 7, 3, 3, 2)]
    asked = [Fraction(n) for n in (3, 5, 2, 7)]
    assert by_commonest(known, asked, 1) == [1.0, 0.0, 0.0, 0.0]
    assert by_commonest(known, asked, 3) == [1.0, 1.0, 1.0, 0.0]
