"""Texts as windows of a network's context: what is read, what is scored, and which windows go together.

A text that fits the judge's context is one window. A longer one is read through a sliding window: each window after
the first moves on by `stride` tokens (half the context), scores only what no window scored before, and so sees at least
context − stride tokens before anything it scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Tokens of text number `text` that are read together; those from index `first` ≥ 1 on are scored."""

    text: int
    tokens: Sequence[int]
    first: int


def windows(text: int, tokens: Sequence[int], first: int, context: int, stride: int) -> Iterator[Window]:
    """The windows over `tokens` that score each token from index `first` on exactly once.

    Token 0 has nothing before it and is never scored.
    """
    first = max(1, first)
    begin = end = 0
    while end < len(tokens):
        # The last `context` tokens up to the new end: the final window is moved back rather than cut short.
        end = min(len(tokens), context if end == 0 else end + stride)
        begin = max(0, end - context)
        if first < end:
            yield Window(text, tokens[begin:end], first - begin)
            first = end


def batches(work: Sequence[Window], room: int, most: int | None = None) -> Iterator[list[Window]]:
    """Windows of like length together, the longest first (so that too little memory shows at once).

    A batch padded to its longest holds at most `room` tokens, and at most `most` windows; always one.
    """
    batch: list[Window] = []
    for one in sorted(work, key=lambda p: -len(p.tokens)):
        longest = len(batch[0].tokens) if batch else len(one.tokens)
        if batch and ((len(batch) + 1) * longest > room or (most is not None and len(batch) >= most)):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch
