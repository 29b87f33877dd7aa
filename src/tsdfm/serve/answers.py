"""What a finished job, or one that is being watched, looks like to a client."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import torch

from tsdfm.serve.jobs import Job, Seen, Text
from tsdfm.serve.schema import Choice, Completion, Usage
from tsdfm.serve.served import Served

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True)
class Answer:
    """The answer to one request. `prompts` begin its texts, and are left out of them unless `echo` asks for them."""

    served: Served
    job: Job
    most: int | None = None
    stop: tuple[str, ...] = ()
    echo: bool = True
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def given(self, index: int) -> list[int]:
        """The places that are given of text `index`, without the anchor; of several lengths, of the first."""
        anchor = self.served.model.velocity.spec.anchor
        row = self.job.asked.row(self.job.numbers.index(index), torch.device("cpu"))
        places: list[int] = [] if row is None else row.held[0, anchor:].nonzero().flatten().tolist()
        return places

    def choice(self, index: int, text: Text) -> tuple[Choice, int, int]:
        """A text, the tokens that were given of it and those that were written."""
        model, anchor = self.served.model, self.served.model.velocity.spec.anchor
        known = len(self.given(index))
        row = text.tokens[anchor:]
        row = row if self.most is None else row[: known + self.most]
        ended = bool(anchor) and bool(row) and row[-1] == model.tokenizer.end_of_text
        whole, prompt = model.text(torch.tensor(row)), self.prompt(index)
        if not self.echo:
            whole = whole[len(prompt) :] if whole.startswith(prompt) else model.text(torch.tensor(row[known:]))
        cuts = [place for word in self.stop if (place := whole.find(word, len(prompt) if self.echo else 0)) >= 0]
        whole = whole[: min(cuts)] if cuts else whole
        choice = Choice(index=index, text=whole, finish_reason="stop" if cuts or ended else "length")
        return choice, known, len(row) - known

    def prompt(self, index: int) -> str:
        """What text `index` was asked to begin with."""
        prefixes = self.job.ask.prefixes
        return prefixes[index // self.job.ask.n] if prefixes else ""

    def completion(self, texts: list[Text]) -> Completion:
        """The whole answer."""
        made = [self.choice(index, text) for index, text in enumerate(texts)]
        known, written = sum(each[1] for each in made), sum(each[2] for each in made)
        passes = sum(text.passes for text in texts)
        usage = Usage(prompt_tokens=known, completion_tokens=written, total_tokens=known + written, passes=passes)
        return self.frame([choice for choice, *_ in made], usage)

    def frame(self, choices: list[Choice], usage: Usage | None = None) -> Completion:
        """What every answer, and every event of a stream, has around its texts."""
        return Completion(
            id=self.id,
            created=self.created,
            model=self.served.name,
            system_fingerprint=self.served.fingerprint,
            seed=self.job.ask.seed,
            choices=choices,
            usage=usage,
        )

    def passing(self, seen: Seen) -> str:
        """A pass as an event: an empty piece of the text to those who add pieces up, and what changed to the others.

        `changes` are [place, token, its text], none as text for [MASK]. The first event has all places.
        """
        decode, vocab = self.served.model.tokenizer.decode, self.served.model.velocity.spec.vocab
        anchor = self.served.model.velocity.spec.anchor
        changes = [
            [place - anchor, token, decode([token]) if token < vocab else None]
            for place, token in seen.changes
            if place >= anchor
        ]
        about: dict[str, Any] = {"index": seen.index, "pass": seen.passes, "of": seen.of, "t": round(seen.t, 6)}
        if seen.passes == 0:
            about["given"] = self.given(seen.index)
        empty = Choice(index=seen.index, text="", finish_reason=None)
        return event({**self.frame([empty]).model_dump(), "provisional": {**about, "changes": changes}})

    def ending(self, texts: list[Text], usage: bool) -> list[str]:
        """The last events: each text in one piece, what it took if that was asked for, and the end."""
        whole = self.completion(texts)
        last = [event(self.frame([choice]).model_dump()) for choice in whole.choices]
        return [*last, *([event(self.frame([], whole.usage).model_dump())] if usage else []), DONE]


def event(value: Any) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(value)}\n\n"
