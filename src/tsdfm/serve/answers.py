"""What a finished job, or one that is being watched, looks like to a client."""

from __future__ import annotations

import codecs
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

    def given(self, row: int) -> list[int]:
        """The places that are given of a row of the job, without the anchor."""
        anchor, given = self.served.model.velocity.spec.anchor, self.job.asked.row(row, torch.device("cpu"))
        places: list[int] = [] if given is None else given.held[0, anchor:].nonzero().flatten().tolist()
        return places

    def choice(self, index: int, text: Text) -> tuple[Choice, int, int]:
        """A text, the tokens that were given of it and those that were written.

        It ends before the written token that would be one too many. What is given at its beginning is searched for no
        `stop`.
        """
        model, anchor = self.served.model, self.served.model.velocity.spec.anchor
        row, given = text.tokens[anchor:], set(self.given(text.row))
        free = [place for place in range(len(row)) if place not in given]
        if self.most is not None and len(free) > self.most:
            row = row[: free[self.most]]
        ended = bool(anchor) and bool(row) and row[-1] == model.tokenizer.end_of_text
        begun = row[: free[0]] if free else row
        whole, first = model.text(torch.tensor(row)), self.prompt(index) or model.text(torch.tensor(begun))
        if not self.echo:
            whole = whole[len(first) :] if whole.startswith(first) else model.text(torch.tensor(row[len(begun) :]))
        cuts = [place for word in self.stop if (place := whole.find(word, len(first) if self.echo else 0)) >= 0]
        whole = whole[: min(cuts)] if cuts else whole
        choice = Choice(index=index, text=whole, finish_reason="stop" if cuts or ended else "length")
        return choice, len(given), sum(place < len(row) for place in free)

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

    def pieces(self, text: Text) -> list[str]:
        """What each place of a text has to say: a character of several tokens stands at the last of them."""
        tokenizer, spec = self.served.model.tokenizer, self.served.model.velocity.spec
        reader, found = codecs.getincrementaldecoder("utf-8")("replace"), [""]
        for token in text.tokens[spec.anchor :]:
            if token == tokenizer.end_of_text or token >= spec.vocab:  # these are no part of any character
                found[-1] += reader.decode(b"", final=True)
                found.append("")
            else:
                found.append(reader.decode(tokenizer.decode_bytes([token])))
        found[-1] += reader.decode(b"", final=True)
        return found[1:]

    def ending(self, texts: list[Text], usage: bool) -> list[str]:
        """The last events: each text in one piece, what it took if that was asked for, and the end."""
        whole = self.completion(texts)
        last = [
            event({**self.frame([choice]).model_dump(), "pieces": self.pieces(text)})
            for choice, text in zip(whole.choices, texts, strict=True)
        ]
        return [*last, *([event(self.frame([], whole.usage).model_dump())] if usage else []), DONE]


def event(value: Any) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(value)}\n\n"
