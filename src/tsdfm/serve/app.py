"""The HTTP application: what is asked becomes a job of the scheduler, and what it makes an answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from tsdfm import __version__
from tsdfm.errors import UserError
from tsdfm.serve.answers import DONE, Answer, event
from tsdfm.serve.guard import Guard, refusal
from tsdfm.serve.jobs import Ask, Busy, Closing, Job, Late, Refused, Seen
from tsdfm.serve.metrics import Counts, Metrics
from tsdfm.serve.page import HEADERS, docs, page, policy
from tsdfm.serve.scheduler import Scheduler
from tsdfm.serve.schema import Card, Cards, Completion, CompletionFields, ErrorAnswer, InfillFields, requests
from tsdfm.serve.settings import ServeSettings

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        400: "a field is wrong: `param` names it",
        401: "the key is missing or wrong",
        403: "the Host header is not this server's",
        404: "no such model or path",
        408: "the request did not come to its end",
        413: "the request is too large",
        429: "the queue is full: see Retry-After",
        500: "a mistake of the server",
        503: "the server is going down",
        504: "the deadline has passed",
    }.items()
}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
STREAM = {"content": {"text/event-stream": {"schema": EVENT}}, "description": "texts, or a stream of their passes"}
ERRORS[400]["content"] = {"text/plain": {"schema": {"type": "string"}}}  # of what is not even HTTP


@dataclass(frozen=True)
class Desk:
    """Where requests are taken and answered."""

    scheduler: Scheduler
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
        usage = body.stream_options is not None and body.stream_options.include_usage
        return await self.write(request, ask, bool(body.stream), usage, most=body.max_tokens, stop=stop, echo=echo)

    async def infill(self, request: Request, body: InfillFields) -> Response:
        """`POST /v1/infill`."""
        ask = body.ask(drawn(body.seed), infills=listed(body.template))
        usage = body.stream_options is not None and body.stream_options.include_usage
        return await self.write(request, ask, bool(body.stream), usage)

    async def write(self, request: Request, ask: Ask, stream: bool, usage: bool, **how: Any) -> Response:
        """Texts for a request, whole or as a stream."""
        if ask.model not in self.cards:
            known = ", ".join(self.cards)
            return refusal(404, f"no model is called {ask.model!r}: there are {known}", param="model")
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Seen | None]()

        def tell(seen: Seen | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(told.put_nowait, seen)

        job = self.scheduler.submit(ask, tell if stream else None)
        job.done.add_done_callback(lambda _: tell(None))
        answer = Answer(self.scheduler.models[ask.model], job, **how)
        if stream:
            return StreamingResponse(self.events(request, answer, told, usage), media_type="text/event-stream")
        async with watched(request, job):
            await told.get()
        if job.done.cancelled():
            return Response(status_code=499)
        return JSONResponse(answer.completion(job.done.result()).model_dump())

    async def events(
        self, request: Request, answer: Answer, told: asyncio.Queue[Seen | None], usage: bool
    ) -> AsyncIterator[str]:
        """Every pass, and the texts at the end."""
        async with watched(request, answer.job) as job:
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
                message = str(problem) if isinstance(problem, UserError | Late) else "a mistake of the server"
                yield event({"error": {"message": message, "type": kind, "param": None, "code": None}})
                yield DONE


@contextlib.asynccontextmanager
async def watched(request: Request, job: Job) -> AsyncIterator[Job]:
    """A job that ends with the block, or when the client hangs up: its rows are then free at the next pass."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watch = asyncio.create_task(gone())
    try:
        yield job
    finally:
        watch.cancel()
        job.cancel()


def drawn(seed: int | None) -> int:
    """The seed of a request, or one that is named in the answer."""
    return secrets.randbits(31) if seed is None else seed


def listed(text: str | list[str] | None) -> tuple[str, ...]:
    """One text or several."""
    return () if text is None else (text,) if isinstance(text, str) else tuple(text)


def cards_of(scheduler: Scheduler) -> dict[str, Card]:
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


def taking(shape: type, answer: Callable[[Request, Any], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """An endpoint whose body has the shape that this server's limits give it."""

    async def endpoint(request: Request, body: Any) -> Response:
        return await answer(request, body)

    endpoint.__annotations__ = {"request": Request, "body": shape}
    return endpoint


def create_app(scheduler: Scheduler, settings: ServeSettings) -> tuple[FastAPI, Guard]:
    """The application, and the same behind its guard, which is what is served."""

    @contextlib.asynccontextmanager
    async def alive(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(scheduler.close)

    app = FastAPI(title="tsdfm", version=__version__, lifespan=alive, docs_url=None, redoc_url=None, responses=ERRORS)
    registry, desk = CollectorRegistry(), Desk(scheduler, cards_of(scheduler))
    kept = APIRouter(dependencies=[Depends(HTTPBearer(auto_error=False))] if settings.api_key else [])
    registry.register(Counts(scheduler))
    completion, infill = requests(settings, list(scheduler.models))
    for path, shape, answer in (
        ("/v1/completions", completion, desk.complete),
        ("/v1/infill", infill, desk.infill),
    ):
        kept.add_api_route(
            path, taking(shape, answer), methods=["POST"], response_model=Completion, responses={200: STREAM}
        )
    cards(kept, desk)
    app.include_router(kept)
    health(app, scheduler, registry)
    refuse(app)
    pages(app)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"])
    key = settings.api_key or None
    return app, Guard(Metrics(app, registry), settings.names, key, settings.max_body, settings.deadline)


def cards(router: APIRouter, desk: Desk) -> None:
    """The paths that tell of the models."""

    @router.get("/v1/models")
    async def models() -> Cards:
        return Cards(data=[desk.card(name) for name in desk.cards])

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Card:
        if model not in desk.cards:
            raise HTTPException(404, f"no model is called {model!r}")
        return desk.card(model)


def health(app: FastAPI, scheduler: Scheduler, registry: CollectorRegistry) -> None:
    """The paths that tell how the server is."""

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> Response:
        broken = scheduler.broken
        return PlainTextResponse(f"broken: {broken}\n" if broken else "ok\n", 503 if broken else 200)

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        ready = scheduler.ready
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def pages(app: FastAPI) -> None:
    """What people look at."""
    main, rules = page(), {**HEADERS, "Content-Security-Policy": policy()}
    plain = {**HEADERS, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    shown = {"include_in_schema": False, "response_class": HTMLResponse}
    app.add_api_route("/", lambda: HTMLResponse(main, headers=rules), **shown)  # type: ignore[arg-type]
    app.add_api_route("/docs", lambda: HTMLResponse(docs(app.openapi()), headers=plain), **shown)  # type: ignore[arg-type]


def refuse(app: FastAPI) -> None:
    """What goes wrong, as an error of OpenAI's shape."""

    async def field(_: Request, problem: Any) -> Response:
        first = problem.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body") or None
        return refusal(400, f"{param or 'the body'}: {first['msg']}", param=param)

    async def refused(request: Request, problem: Any) -> Response:
        param = getattr(problem, "field", None)
        own = "template" if request.url.path == "/v1/infill" and param == "infill" else param
        return refusal(400, str(problem), param=own)

    answers: dict[Any, Any] = {
        RequestValidationError: field,
        Refused: refused,
        UserError: refused,
        Busy: lambda _, problem: refusal(429, str(problem), seconds=problem.seconds),
        Closing: lambda _, problem: refusal(503, str(problem), seconds=1),
        Late: lambda _, problem: refusal(504, str(problem)),
        HTTPException: lambda _, problem: refusal(problem.status_code, str(problem.detail), headers=problem.headers),
        Exception: lambda _, problem: refusal(500, "a mistake of the server"),
    }
    for kind, answer in answers.items():
        app.add_exception_handler(kind, answer)
