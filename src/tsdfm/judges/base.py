"""What a judge is: something that says how likely a text is, and has a fingerprint.

Conventions, the same for every judge:

- A score is the sum of −log p over the judge's own tokens, in nats, and the number of tokens it was summed over.
- The first token is conditioned on the judge's end-of-text (or begin-of-text) token where it has one; a judge without
  such a token does not score the first token, as transformers' own loss does not.
- With prefixes, texts are still whole: each begins with its prefix, and only what follows is scored. The whole text is
  tokenised at once, as a reader would, and a token belongs to the prefix if it ends inside it; one that straddles
  the border holds characters of the continuation and is scored.
- An empty text, or one without a token to score, gets the empty score (no tokens); metrics leave it out and count it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tsdfm.errors import UserError
from tsdfm.metrics import Score as Score

OnDone = Callable[[int, int], None]
"""`on_done(done, total)`: how many texts have been scored."""


@runtime_checkable
class Judge(Protocol):
    """A language model, exact or learned, that scores texts."""

    @property
    def name(self) -> str:
        """Short, for people."""

    @property
    def fingerprint(self) -> str:
        """kind:name:hash, with 8 hex digits of its content: equal exactly when two judges are the same."""

    @property
    def precision(self) -> str:
        """`exact`, `fp32` or `bf16`: what the arithmetic was done in."""

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        """A score for each text, in their order."""


def check_prefixes(texts: Sequence[str], prefixes: Sequence[str] | None) -> list[int]:
    """The length of each text's prefix in characters, 0 without; refuses a text that does not begin with its own."""
    if prefixes is None:
        return [0] * len(texts)
    if len(prefixes) != len(texts):
        raise UserError(f"there are {len(prefixes)} prefixes for {len(texts)} texts: give one for each")
    for number, (text, prefix) in enumerate(zip(texts, prefixes, strict=True)):
        if not text.startswith(prefix):
            raise UserError(f"text {number} does not begin with its prefix {prefix[:40]!r}: give whole texts")
    return [len(prefix) for prefix in prefixes]


def fingerprint(kind: str, name: str, content: bytes | str) -> str:
    """kind:name:hash of `content`, which is either hashed here or a sha256 in hex already."""
    digest = content if isinstance(content, str) else hashlib.sha256(content).hexdigest()
    return f"{kind}:{name}:{digest[:8]}"
