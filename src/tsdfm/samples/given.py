"""What is known of a text before it is written: a prefix, or a template with gaps.

What is given is cut into tokens as it would be in the finished text. A word of a byte-level BPE carries the space
before it: so the space before a gap is not given as a token, but the gap's first token is one that begins with a space;
and the space after a gap belongs to the literal that follows. Where a space is a token of its own, as with bytes, it is
given, and what is written beside it neither begins nor ends with white space. Either way the text reads as the template
with its gaps filled, no space missing and none doubled.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import Limits
from tsdfm.tokens.tokenizer import Tokenizer

GAP = re.compile(r"\{(\d+)(?:-(\d+))?\}")
OPENS, AFTER, BEFORE = 1, 2, 4  # what holds of a written token: it brings the space; it stands after one, before one
MOST = 64  # combinations of lengths that are tried for one template


@dataclass(frozen=True)
class Given:
    """Rows of which something is known: `tokens` where `held`, and `sides`, what written tokens have beside them.

    All are [R, L]; `sides` are sums of OPENS, AFTER and BEFORE.
    """

    held: Tensor
    tokens: Tensor
    sides: Tensor

    def rows(self, which: Tensor, device: torch.device) -> Given:
        """The rows `which` [B], on `device`."""
        return Given(*(x[which].to(device) for x in (self.held, self.tokens, self.sides)))

    def limits(self, tokenizer: Tokenizer) -> Limits | None:
        """The tokens that may be written beside the spaces that are given; none if they may be any."""
        return Limits(self.sides, allowed_beside(tokenizer)) if bool(self.sides.any()) else None


@functools.lru_cache(maxsize=16)
def allowed_beside(tokenizer: Tokenizer) -> Tensor:
    """The tokens [sides, V] that may be written, by the sum of what they have beside them."""
    rules = {OPENS: tokenizer.opening, AFTER: ~tokenizer.blank_start, BEFORE: ~tokenizer.blank_end}
    sets = torch.ones(OPENS + AFTER + BEFORE + 1, tokenizer.vocab_size, dtype=torch.bool)
    for sides, (side, allowed) in itertools.product(range(len(sets)), rules.items()):
        if sides & side:
            sets[sides] &= torch.from_numpy(allowed)
    return sets


@dataclass(frozen=True)
class Template:
    """Literals with gaps between them: one literal more than gaps, each gap a number of tokens from 1 on."""

    literals: tuple[str, ...]
    gaps: tuple[int, ...] = ()
    what: str = "infill template"

    def row(self, tokenizer: Tokenizer, length: int, anchor: int) -> Given:
        """The row [1, L] that it gives, after the row's anchor. What comes after its end is written freely."""
        parts: list[int | None] = [tokenizer.end_of_text] * anchor
        sides = dict[int, int]()
        for place, (literal, gap) in enumerate(zip(self.literals, (*self.gaps, 0), strict=True)):
            ids, opens = tokenizer.encode_open(literal)
            if opens and not gap and len(parts) + len(ids) == length:  # nothing will be written after it
                ids, opens = tokenizer.encode(literal), False
            if literal.startswith(" ") and parts and parts[-1] is None:
                sides[len(parts) - 1] = sides.get(len(parts) - 1, 0) | BEFORE
            parts += ids
            if literal.endswith(" "):
                sides[len(parts)] = OPENS if opens else AFTER
            parts += [None] * gap
            if len(parts) > length:  # the rest is not looked at: it may be long
                least = "at least " if any(self.literals[place + 1 :]) else ""
                size, room = len(parts) - anchor + sum(self.gaps[place + 1 :]), length - anchor
                raise UserError(f"the {self.what} has {least}{size} tokens, the model writes {room}: shorten it")
        held, tokens = torch.zeros(1, length, dtype=torch.bool), torch.zeros(1, length, dtype=torch.int64)
        beside = torch.zeros(1, length, dtype=torch.int64)
        for position, token in enumerate(parts):
            if token is not None:
                held[0, position], tokens[0, position] = True, token
        for position, side in sides.items():
            if position < length:
                beside[0, position] = side
        return Given(held, tokens, beside)


def templates(text: str, length: int) -> list[Template]:
    """What an infill template means: one for each combination of lengths that its gaps may have.

    `{5}` is a gap of five tokens, `{3-8}` one of three to eight: `"Mia has {2} balls."`
    """
    words = GAP.split(re.sub(r"\{0+\}", "", text))
    lengths = [lengths_of(low, high, length) for low, high in zip(words[1::3], words[2::3], strict=True)]
    if not lengths:
        raise UserError("the infill template has no gap: write {5} where five tokens are to be filled in")
    if len(lengths) > length:
        raise UserError(f"the infill template has {len(lengths)} gaps, the model writes {length} tokens: shorten it")
    if (ways := math.prod(map(len, lengths))) > MOST:
        many = f"{ways}" if ways < 10**9 else "billions of"
        raise UserError(f"the gaps have {many} combinations of lengths, at most {MOST} are tried: narrow them")
    return [Template(tuple(words[::3]), gaps) for gaps in itertools.product(*lengths)]


def lengths_of(low: str, high: str | None, length: int) -> range:
    """The lengths that a gap may have."""
    shown = f"{{{low[:20]}-{high[:20]}}}" if high else f"{{{low[:20]}}}"
    if max(len(low), len(high or "")) > 9 or max(int(low), int(high or 0)) > length:  # a typo may ask for billions
        raise UserError(f"the gap {shown} is larger than the {length} tokens the model writes: shorten it")
    if high is not None and not 1 <= int(low) <= int(high):
        raise UserError(f"the gap {shown} has no length: write the smaller number first, from 1 on, as in {{3-8}}")
    return range(int(low), int(high or low) + 1)


@dataclass(frozen=True)
class Asked:
    """The rows of one generation: their texts' numbers [R], and which of the rows `given` [R] each starts from.

    Texts come in order, each as often as there are lengths of its gaps to try: a text is the rows of one number.
    """

    numbers: Tensor
    which: Tensor
    given: Given | None

    @property
    def texts(self) -> int:
        """How many texts there will be."""
        return len(set(self.numbers.tolist()))

    def rows(self, part: slice, device: torch.device) -> Given | None:
        """What is given of some of the rows."""
        return None if self.given is None else self.given.rows(self.which[part], device)

    def row(self, number: int, device: torch.device) -> Given | None:
        """What is given of one of the rows, [1, L], without a copy where it lies there already."""
        if self.given is None:
            return None
        row = int(self.which[number])
        return Given(*(x[row : row + 1].to(device) for x in (self.given.held, self.given.tokens, self.given.sides)))


def read_asked(
    tokenizer: Tokenizer,
    length: int,
    anchor: int,
    n: int = 1,
    first: int = 0,
    *,
    prefixes: Sequence[str] = (),
    infills: Sequence[str] = (),
    most: float = math.inf,
    word: str = "prefix",
) -> Asked:
    """`n` texts for each prefix or infill template; without either, `n` texts of which the anchor alone is given.

    Text j of the p-th prefix has the number first + p·n + j. Braces in a prefix are text. What takes more than `most`
    rows is refused before any is made. `word` is what the messages call a prefix.
    """
    if prefixes and infills:
        raise UserError("give either a prefix or an infill template, not both")
    ways, texts, count = list[list[Template]](), infills or prefixes or [""], 0
    for text in texts:
        ways.append(templates(text, length) if infills else [Template((text,), what=named(word, text, prefixes))])
        count += n * len(ways[-1])
        if count > most:
            least = "" if len(ways) == len(texts) else "at least "
            raise UserError(f"this takes {least}{count} rows, at most {most} are taken: ask for fewer texts")
    rows = [way.row(tokenizer, length, anchor) for each in ways for way in each]
    given = Given(*(torch.cat([getattr(row, name) for row in rows]) for name in ("held", "tokens", "sides")))
    numbers, which, start = list[int](), list[int](), 0
    for place, each in enumerate(ways):
        numbers += [first + place * n + j for j in range(n) for _ in each]
        which += [*range(start, start + len(each))] * n
        start += len(each)
    known = bool(infills) or bool(given.held.any()) or bool(given.sides.any())
    return Asked(torch.tensor(numbers), torch.tensor(which), given if known else None)


def as_prompts(texts: Sequence[str], prompted: bool) -> list[str]:
    """Prompts as a model takes them: one that learned answers (`prompted`) has a newline at their end.

    >>> as_prompts(["How many?", "How many?\\n"], prompted=True)
    ['How many?\\n', 'How many?\\n']
    """
    return [text if text.endswith("\n") or not prompted else f"{text}\n" for text in texts]


def named(what: str, text: str, among: Sequence[str]) -> str:
    """What an error calls one of some texts: with its beginning, where there are others."""
    return what if len(among) < 2 else f"{what} {text[:30]!r}"


def several(text: str | Sequence[str] | None, what: str) -> list[str]:
    """One text or a list of them, as a list; none for None."""
    texts = [] if text is None else [text] if isinstance(text, str) else list(text)
    if text is not None and not texts:
        raise UserError(f"the list of {what} is empty: give at least one")
    for each in texts:
        if not isinstance(each, str):
            raise UserError(f"{what} are texts, not {type(each).__name__}: give a string or a list of strings")
    return texts
