"""Where requests are taken and answered: what is asked becomes a job of the scheduler, and what it makes an answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tsdfm.errors import UserError
from tsdfm.serve.answers import DONE, Answer, event
from tsdfm.serve.guard import refusal
from tsdfm.serve.intake import Intake
from tsdfm.serve.jobs import Ask, Broken, Job, Late, Seen
from tsdfm.serve.schema import Card, CompletionFields, InfillFields

BEHIND = 64  # passes that wait for a client: of one that reads more slowly, several become one


class Told:
    """What a client is still to be told, in order; `None` is the end. All of it happens on the server's loop."""

    def __init__(self) -> None:
        self.left, self.news = list[Seen | None](), asyncio.Event()

    def put(self, seen: Seen | None) -> None:
        """One more; where many wait, it is told together with the last one of its text, but never with the first."""
        self.news.set()
        if seen is not None and len(self.left) >= BEHIND:
            for place, other in reversed(list(enumerate(self.left))):
                if other is not None and other.index == seen.index and other.passes:
                    self.left[place] = other.then(seen)
                    return
        self.left.append(seen)

    async def get(self) -> Seen | None:
        """The next, once there is one."""
        while not self.left:
            self.news.clear()
            await self.news.wait()
        return self.left.pop(0)


@dataclass(frozen=True)
class Desk:
    """Where requests are taken and answered."""

    scheduler: Intake
    cards: dict[str, Card]

    def card(self, name: str) -> Card:
        """What is said of a model; whether its texts are exact is known once it is warm."""
        return self.cards[name].model_copy(update={"exact": self.scheduler.exact.get(name, False)})

    async def complete(self, request: Request, body: CompletionFields) -> Response:
        """`POST /v1/completions`."""
        if body.prompt is not None and body.infill is not None:
            return refusal(400, "give either a prompt or an infill template, not both", param="infill")
        ask = body.ask(drawn(body.seed), prefixes=listed(body.prompt), infills=listed(body.infill))
        stop, echo = listed(body.stop), bool(body.echo) or body.infill is not None
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return await self.write(request, ask, bool(body.stream), usage, most=body.max_tokens, stop=stop, echo=echo)

    async def infill(self, request: Request, body: InfillFields) -> Response:
        """`POST /v1/infill`."""
        ask = body.ask(drawn(body.seed), infills=listed(body.template))
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return await self.write(request, ask, bool(body.stream), usage)

    async def write(self, request: Request, ask: Ask, stream: bool, usage: bool, **how: Any) -> Response:
        """Texts for a request, whole or as a stream."""
        if ask.model not in self.cards:
            known = ", ".join(self.cards)
            return refusal(404, f"no model is called {ask.model!r}: there are {known}", param="model")
        loop, told = asyncio.get_running_loop(), Told()

        def tell(seen: Seen | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(told.put, seen)

        job = self.scheduler.submit(ask, tell if stream else None)
        job.done.add_done_callback(lambda _: tell(None))
        answer = Answer(self.scheduler.models[ask.model], job, **how)
        if stream:
            return StreamingResponse(self.events(request, answer, told, usage), media_type="text/event-stream")
        async with watched(request, job, self.scheduler):
            await told.get()
        if job.done.cancelled():
            return Response(status_code=499)
        return JSONResponse(answer.completion(job.done.result()).model_dump())

    async def events(self, request: Request, answer: Answer, told: Told, usage: bool) -> AsyncIterator[str]:
        """Every pass, and the texts at the end."""
        async with watched(request, answer.job, self.scheduler) as job:
            while (seen := await told.get()) is not None:
                yield answer.passing(seen)
            if job.done.cancelled():
                return
            problem = job.done.exception()
            if problem is None:
                for last in answer.ending(job.done.result(), usage):
                    yield last
            else:
                kind = "invalid_request_error" if isinstance(problem, UserError) else "server_error"
                known = isinstance(problem, UserError | Late | Broken)
                message = str(problem) if known else "a mistake of the server"
                yield event({"error": {"message": message, "type": kind, "param": None, "code": None}})
                yield DONE


@contextlib.asynccontextmanager
async def watched(request: Request, job: Job, scheduler: Intake) -> AsyncIterator[Job]:
    """A job that ends with the block, or when the client hangs up: its rows are then free at the next pass.

    Its deadline is kept here too: a device that is being warmed, or hangs, looks at no clock.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watch = asyncio.create_task(gone())
    late = asyncio.get_running_loop().call_later(scheduler.limits.deadline, lambda: job.fail(scheduler.late()))
    try:
        yield job
    finally:
        late.cancel()
        watch.cancel()
        job.cancel()


def drawn(seed: int | None) -> int:
    """The seed of a request, or one that is named in the answer."""
    return secrets.randbits(31) if seed is None else seed


def listed(text: str | list[str] | None) -> tuple[str, ...]:
    """One text or several."""
    return () if text is None else (text,) if isinstance(text, str) else tuple(text)


def cards_of(scheduler: Intake) -> dict[str, Card]:
    """What is said of the served models."""
    made = {}
    for name, served in scheduler.models.items():
        spec, now = served.model.velocity.spec, int(time.time())
        made[name] = Card(
            id=name,
            created=now,
            method=spec.method or served.model.method,
            source=spec.source,
            length=served.length,
            steps=served.defaults.steps,
            temperature=served.defaults.temperature,
            guides=["blind"] if served.compass is None else ["blind", "sequence", "token", "sequence-to-token"],
            end_of_text=served.model.tokenizer.end_of_text,
            exact=False,
            system_fingerprint=served.fingerprint,
        )
    return made
