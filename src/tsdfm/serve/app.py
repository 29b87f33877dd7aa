"""The HTTP application: its paths, its document, and how it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from tsdfm import __version__
from tsdfm.errors import UserError
from tsdfm.serve.desk import Desk, cards_of
from tsdfm.serve.guard import Guard, refusal
from tsdfm.serve.intake import Intake
from tsdfm.serve.jobs import Broken, Busy, Closing, Late, Refused
from tsdfm.serve.metrics import Counts, Metrics
from tsdfm.serve.page import HEADERS, docs, page, policy
from tsdfm.serve.schema import Card, Cards, Completion, ErrorAnswer, requests
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
        503: "the server is going down, or has broken down",
        504: "the deadline has passed",
    }.items()
}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
STREAM = {"content": {"text/event-stream": {"schema": EVENT}}, "description": "texts, or a stream of their passes"}
TEXT = {"text/plain": {"schema": {"type": "string"}}}
ERRORS[400]["content"] = TEXT  # of what is not even HTTP


def taking(shape: type, answer: Callable[[Request, Any], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """An endpoint whose body has the shape that this server's limits give it."""

    async def endpoint(request: Request, body: Any) -> Response:
        return await answer(request, body)

    endpoint.__annotations__ = {"request": Request, "body": shape}
    return endpoint


def create_app(scheduler: Intake, settings: ServeSettings) -> tuple[FastAPI, ASGIApp]:
    """The application, and the same behind its guard, which is what is served.

    What the guard refuses is counted too, and pages of the origins that may ask can read it.
    """

    @contextlib.asynccontextmanager
    async def alive(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(scheduler.close)

    app = FastAPI(title="tsdfm", version=__version__, lifespan=alive, docs_url=None, redoc_url=None)
    registry, desk = CollectorRegistry(), Desk(scheduler, cards_of(scheduler))
    locked = settings.api_key is not None
    kept = APIRouter(
        dependencies=[Depends(HTTPBearer(auto_error=False))] if locked else [],
        responses={status: about for status, about in ERRORS.items() if locked or status != 401},
    )
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
    describe(app)
    pages(app)
    guarded = Guard(app, settings.names, settings.api_key, settings.max_body, settings.deadline)
    counted: ASGIApp = Metrics(guarded, registry)
    if settings.origins:
        return app, CORSMiddleware(counted, settings.origins, allow_methods=["*"], allow_headers=["*"])
    return app, counted


def describe(app: FastAPI) -> None:
    """Its document without the status 422 that FastAPI gives for wrong fields, which is 400 here."""
    made = app.openapi

    def document() -> dict[str, Any]:
        about = made()
        for path in about["paths"].values():
            for way in path.values():
                way["responses"].pop("422", None)
        for shape in ("HTTPValidationError", "ValidationError"):
            about["components"]["schemas"].pop(shape, None)
        return about

    app.openapi = document  # type: ignore[method-assign]


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


def health(app: FastAPI, scheduler: Intake, registry: CollectorRegistry) -> None:
    """The paths that tell how the server is."""
    said = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}}
    told: dict[int | str, dict[str, Any]] = {
        400: {"description": "it is not HTTP", "content": TEXT},
        **{status: {"description": ERRORS[status]["description"], "content": said} for status in (403, 413, 500)},
    }
    not_now: dict[int | str, dict[str, Any]] = {503: {"description": "broken down, or not ready", "content": TEXT}}

    @app.get("/healthz", response_class=PlainTextResponse, responses={**told, **not_now})
    async def healthz() -> Response:
        broken = scheduler.broken
        return PlainTextResponse(f"broken: {broken}\n" if broken else "ok\n", 503 if broken else 200)

    @app.get("/readyz", response_class=PlainTextResponse, responses={**told, **not_now})
    async def readyz() -> Response:
        ready = scheduler.ready
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, responses=told)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def pages(app: FastAPI) -> None:
    """What people look at."""
    main, rules = page(), {**HEADERS, "Content-Security-Policy": policy()}
    plain = {**HEADERS, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    shown = {"include_in_schema": False, "response_class": HTMLResponse}
    app.add_api_route("/", lambda: HTMLResponse(main, headers=rules), **shown)  # type: ignore[arg-type]
    app.add_api_route("/docs", lambda: HTMLResponse(docs(app.openapi()), headers=plain), **shown)  # type: ignore[arg-type]


def inside(body: Any, places: Sequence[Any]) -> list[str]:
    """Those of the places of an error that are places of the body; others name one of several shapes."""
    found = []
    for place in places:
        if (isinstance(body, dict) and place in body) or (isinstance(body, list) and isinstance(place, int)):
            found.append(str(place))
            body = body[place]
    return found


def wrong_field(errors: Sequence[Any], body: Any) -> tuple[list[str], str]:
    """The first field of a body that is wrong, with the places in it, and why. One of several shapes has an error for
    each: what was sent has the shape whose error is not about its type, or lies deepest.
    """
    own = [error for error in errors if error["loc"][:2] == errors[0]["loc"][:2]]
    found = max(own, key=lambda error: (not error["type"].endswith("_type"), len(error["loc"])))
    if found["type"] == "json_invalid":
        return [], found["msg"]
    name, *rest = found["loc"][1:] or [None]
    held = body.get(name) if isinstance(body, dict) else None
    where = [] if name is None else [str(name), *inside(held, rest)]
    return where, "is not known here: leave it out" if found["type"] == "none_required" else found["msg"]


def refuse(app: FastAPI) -> None:
    """What goes wrong, as an error of OpenAI's shape."""

    async def field(request: Request, problem: Any) -> Response:
        where, what = wrong_field(problem.errors(), problem.body)
        if not where and "json" not in request.headers.get("content-type", ""):
            what = "send it with Content-Type: application/json"
        return refusal(400, f"{'.'.join(where) or 'the body'}: {what}", param=where[0] if where else None)

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
        Broken: lambda _, problem: refusal(503, str(problem)),
        Late: lambda _, problem: refusal(504, str(problem)),
        HTTPException: lambda _, problem: refusal(problem.status_code, str(problem.detail), headers=problem.headers),
        Exception: lambda _, problem: refusal(500, "a mistake of the server"),
    }
    for kind, answer in answers.items():
        app.add_exception_handler(kind, answer)
