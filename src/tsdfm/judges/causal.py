"""Any network that gives logits of the next token, as a judge: tokenise, cut into windows, batch, score, add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.judges.base import OnDone, Score, check_prefixes
from tsdfm.judges.windows import Window, batches, windows

LOGITS = {"cpu": 1 << 26, "cuda": 1 << 29}  # logits alive at once: 256 MiB, 2 GiB in float32
STRIP = {"cuda": 1 << 26}  # logits whose sums are taken at once; elsewhere those of one window
SHARD = 1 << 12  # texts tokenised at a time


@dataclass(frozen=True)
class Encoded:
    """The tokens of one text and, for each, the index of the character after its last."""

    ids: list[int]
    ends: list[int]


@dataclass(frozen=True)
class Spelled:
    """One text token by token: the index of the character after each, and −log p of what was scored, on the host.

    `costs` holds fewer than `ends` where the context ends before the text. With `closed` the end of the text is scored
    too, and its cost comes last where the context reaches it. `begin` are the characters before the first of `ends`
    that are read and not scored.
    """

    ends: list[int]
    costs: Tensor
    closed: bool
    begin: int = 0

    @property
    def tokens(self) -> Tensor:
        """−log p of the text's own tokens [n]."""
        return self.costs[: len(self.ends)]

    @property
    def end(self) -> float | None:
        """−log p of the end, where it was scored."""
        return float(self.costs[-1]) if self.closed and len(self.costs) > len(self.ends) else None


class CausalReader(Protocol):
    """A tokenizer and a network."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab(self) -> int:
        """Columns of the logits."""

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts as tokens, without any special one."""

    def logits(self, tokens: Tensor) -> Tensor:
        """[b, l, V] for tokens [b, l]; a position never sees a later one."""

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final hidden states [b, l, D]."""


@dataclass(frozen=True, kw_only=True)
class CausalJudge:
    """A reader with its conventions: `start` is read before every text, `end` is scored after it (or is none)."""

    reader: CausalReader
    name: str
    fingerprint: str
    precision: str
    context: int
    start: int | None
    end: int | None = None
    stride: int | None = None
    batch: int | None = None

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        """A score for each text."""
        given = check_prefixes(texts, prefixes)
        found: list[Score] = []
        for at in range(0, len(texts), SHARD):
            part = slice(at, at + SHARD)
            tell = (lambda done, at=at: on_done(at + done, len(texts))) if on_done is not None else None
            found += self._score(texts[part], given[part], tell)
        return found

    def _score(self, texts: Sequence[str], given: Sequence[int], tell: Callable[[int], None] | None) -> list[Score]:
        work = self._windows(texts, given)
        nll, tokens, hits = [0.0] * len(texts), [0] * len(texts), [0] * len(texts)
        left = [0] * len(texts)
        for one in work:
            left[one.text] += 1
        done = left.count(0)
        for batch in batches(work, self._room(), self.batch):
            for one, (cost, count, hit) in zip(batch, self._read(batch), strict=True):
                nll[one.text] += cost
                tokens[one.text] += count
                hits[one.text] += hit
                left[one.text] -= 1
                done += left[one.text] == 0
            if tell is not None:
                tell(done)
        lengths = [len(text) - known for text, known in zip(texts, given, strict=True)]
        return [Score(*one) for one in zip(nll, tokens, lengths, hits, strict=True)]

    def _windows(self, texts: Sequence[str], given: Sequence[int]) -> list[Window]:
        work: list[Window] = []
        stride = self.stride or max(1, self.context // 2)
        front = [] if self.start is None else [self.start]
        back = [] if self.end is None else [self.end]
        for number, (text, known) in enumerate(zip(self.reader.encode(texts), given, strict=True)):
            first = next((i for i, end in enumerate(text.ends) if end > known), len(text.ids))
            work += windows(number, [*front, *text.ids, *back], len(front) + first, self.context, stride)
        return work

    def _room(self) -> int:
        """Tokens of a batch such that its logits fit."""
        return LOGITS.get(self.reader.device.type, LOGITS["cpu"]) // self.reader.vocab

    def _read(self, batch: list[Window]) -> list[tuple[float, int, int]]:
        """−log p, tokens and hits of each window."""
        found = [torch.stack([cost.double().sum(), hits.sum().double()]) for cost, hits in self._costs(batch)]
        totals = torch.stack(found).cpu()  # one transfer a batch
        if not bool(torch.isfinite(totals).all()):
            raise UserError(f"the judge {self.name} gave a text no finite score: try --precision fp32")
        counts = [len(one.tokens) - one.first for one in batch]
        return [(float(t[0]), n, int(t[1])) for t, n in zip(totals, counts, strict=True)]

    @torch.no_grad()
    def _costs(self, batch: list[Window]) -> Iterator[tuple[Tensor, Tensor]]:
        """−log p of each scored token of a window, and whether it was the likeliest: [n] each, on the device."""
        tokens = self._pad(batch)
        target = tokens[:, 1:]
        logits = self.reader.logits(tokens)[:, : target.shape[1]]
        many = max(1, STRIP.get(logits.device.type, 1) // logits[0].numel())
        for first in range(0, len(batch), many):
            part = slice(first, first + many)
            wide = logits[part].float() if logits.dtype != torch.float64 else logits[part]
            costs = wide.logsumexp(-1) - wide.gather(-1, target[part, :, None]).squeeze(-1)
            hits = wide.argmax(-1) == target[part]
            for cost, hit, one in zip(costs, hits, batch[part], strict=True):
                scored = slice(one.first - 1, len(one.tokens) - 1)
                yield cost[scored], hit[scored]

    def spelled(self, texts: Sequence[str]) -> list[Spelled]:
        """Each text token by token, as far as the context reaches."""
        front = [] if self.start is None else [self.start]
        back = [] if self.end is None else [self.end]
        read = self.reader.encode(texts)
        rows = [[*front, *one.ids, *back][: self.context] for one in read]
        work = [Window(i, row, 1) for i, row in enumerate(rows) if len(row) > 1]
        found: dict[int, Tensor] = {}
        for batch in batches(work, self._room(), self.batch):
            costs = [cost for cost, _ in self._costs(batch)]
            parts = torch.split(torch.cat(costs).cpu(), [len(cost) for cost in costs])  # one transfer a batch
            found |= {one.text: cost for one, cost in zip(batch, parts, strict=True)}
        if not all(bool(torch.isfinite(costs).all()) for costs in found.values()):
            raise UserError(f"the judge {self.name} gave a token no finite score: try another precision")
        none, skipped = torch.zeros(0), 1 - len(front)  # without a start the first token is read, and not scored
        return [
            Spelled(one.ends[skipped:], found.get(i, none), bool(back), sum(one.ends[:skipped]))
            for i, one in enumerate(read)
        ]

    def _pad(self, batch: list[Window]) -> Tensor:
        """[b, l], filled up on the right with token 0, which no scored position sees."""
        tokens = torch.zeros(len(batch), max(len(one.tokens) for one in batch), dtype=torch.int64)
        for row, one in zip(tokens, batch, strict=True):
            row[: len(one.tokens)] = torch.as_tensor(one.tokens)
        return tokens.to(self.reader.device)

    @torch.no_grad()
    def features(self, texts: Sequence[str], pool: Literal["mean", "last"] = "mean") -> Tensor:
        """Final hidden states [n, D] in float32 on the CPU, for MAUVE: their mean over a text's tokens, or the last.

        A text longer than the context is read up to it; an empty one has the state of the start token (or zeros).
        """
        front = [] if self.start is None else [self.start]
        work = [Window(i, [*front, *e.ids][: self.context], 0) for i, e in enumerate(self.reader.encode(texts))]
        found: dict[int, Tensor] = {}
        for batch in batches([one for one in work if one.tokens], self._room(), self.batch):
            hidden = self.reader.hidden(self._pad(batch)).float()
            for row, one in zip(hidden, batch, strict=True):
                words = row[min(len(front), len(one.tokens) - 1) : len(one.tokens)]
                found[one.text] = (words.mean(0) if pool == "mean" else words[-1]).cpu()
        if not found:
            raise UserError("features need at least one text that is not empty")
        blank = torch.zeros_like(next(iter(found.values())))
        return torch.stack([found.get(i, blank) for i in range(len(texts))])
