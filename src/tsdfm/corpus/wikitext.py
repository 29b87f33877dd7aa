"""WikiText comes as lines of spaced-out tokens. These give back articles in ordinary spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

TITLE = re.compile(r"^ ?= (?!=)[^\n]*[^= ] = *$")


def articles(lines: Iterable[str]) -> Iterator[str]:
    """Group WikiText lines into articles, each from one ` = Title = ` line to the next, in ordinary spelling."""
    held: list[str] = []
    after_blank = True  # a title stands alone between blank lines; a sentence such as ` = 5 = ` does not
    for raw in lines:
        line = raw.rstrip("\r\n")
        if after_blank and TITLE.match(line) and any(part.strip() for part in held):
            yield spell("\n".join(held))
            held = []
        held.append(line)
        after_blank = not line.strip()
    if any(part.strip() for part in held):
        yield spell("\n".join(held))


def spell(text: str) -> str:
    """Undo WikiText's tokenised style: `1 @,@ 000 ( ten )` becomes `1,000 (ten)`."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([,.:;!?%])(?= |\n|$)", r"\1", text)
    text = re.sub(r"([(\[{]) ", r"\1", text)
    text = re.sub(r" ([)\]}])", r"\1", text)
    text = re.sub(r'" ([^"\n]*?) "', r'"\1"', text)
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m))\b", r"\1", text)
    text = re.sub(r"s ' ", "s' ", text)
    text = re.sub(r"(?<==) (?==)", "", text)
    return "\n".join(line.strip() for line in text.split("\n")).strip("\n")
