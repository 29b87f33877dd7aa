"""Which split a document belongs to: a matter of its text alone."""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import dataclass, field

from tsdfm.corpus.files import Document
from tsdfm.store.hashes import SPLITS as SPLITS

WHOLE = 0.25  # of all characters: a text that is more than that is not held out whole
LEAST, TENTH = 2000, 0.1  # a piece that is held out has so many characters, or is a tenth of its text if that is less
NEAR = 100  # characters before the cut among which a space is looked for


def number_of(text: str, seed: int = 0) -> int:
    """A number below 2^64 that depends on the text alone, uniform over texts."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)).digest()
    return int.from_bytes(digest, "little")


def split_of(text: str, valid: float, seed: int = 0) -> str:
    """`valid` for a share `valid` of all texts, else `train`.

    The text is hashed to a number in [0, 1): equal texts are never in two splits, and neither the order of documents
    nor the presence of others moves one. A text held out at 1 % is also held out at 2 %.
    """
    return "valid" if number_of(text, seed) < valid * 2.0**64 else "train"


@dataclass
class Spare:
    """What to hold out of a corpus too small for chance: the text of the lowest number, which comes first at any share.

    It is looked for only as long as one of the splits is empty. An answer is held out whole, with all others to the
    same prompt.
    """

    seed: int
    document: Document | None = None
    number: int = 1 << 64
    copies: int = 0
    characters: int = 0  # of all texts
    split: str = ""  # the one that everything is in
    sources: array[int] = field(default_factory=lambda: array("I"))  # of each document, in order
    settled: bool = False

    def see(self, split: str, source: int, document: Document) -> None:
        """A document was written to a split."""
        if self.settled:
            return
        number = number_of(document.key, self.seed)
        first = self.document is None
        if not first and (split != self.split or (split == "valid" and number != self.number)):
            self.settled, self.document, self.sources = True, None, array("I")
            return
        if number < self.number:
            self.document, self.number, self.copies = document, number, 0
        self.copies += number == self.number
        self.characters += len(document.text)
        self.split = split
        self.sources.append(source)

    def parts(self, valid: float) -> tuple[str, str]:
        """What of the text is for training, and what is held out: all of it, or its end where that is too much.

        Nothing of both where neither split is empty.
        """
        text = self.document.text if self.document else ""
        if self.document and self.document.prompt:
            return ("", text) if self.copies < len(self.sources) else (text, "")
        return ("", text) if self.copies * len(text) <= WHOLE * self.characters else cut_off(text, valid)


def cut_off(text: str, share: float) -> tuple[str, str]:
    """A text without its end, and the end: `share` of it, but not too little to be of use. A word stays whole.

    >>> cut_off("one two three four five six", 0.3)
    ('one two three four', 'five six')
    """
    cut = max(1, len(text) - math.ceil(max(share * len(text), min(LEAST, TENTH * len(text)))))
    spaces = [place for place in range(max(1, cut - NEAR), cut + 1) if text[place : place + 1].isspace()]
    for place in (*spaces[::-1], *([cut] if len(text) > NEAR else [])):  # some scripts have no spaces
        head, tail = text[:place].rstrip(), text[place:].lstrip()
        if head and tail:
            return head, tail
    return text, ""
