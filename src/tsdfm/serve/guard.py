"""What every request must pass before it is looked at: the Host header, the key, and the size of its body."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from tsdfm.view.serve import answers_to

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
KEPT = "/v1/"  # paths that need the key
SAID = 1000  # most characters of a message or a name: it may repeat what was sent


def refusal(
    status: int,
    message: str,
    *,
    param: str | None = None,
    seconds: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error as OpenAI's clients read it. ASCII alone, since a message may repeat what is no Unicode."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    more = {"Retry-After": str(seconds)} if seconds is not None else {}
    if status == 401:
        more["WWW-Authenticate"] = "Bearer"
    said, named = (text and text[:SAID].encode("ascii", "backslashreplace").decode() for text in (message, param))
    error = {"message": said, "type": kind, "param": named, "code": None}
    return JSONResponse({"error": error}, status, {**(headers or {}), **more})


@dataclass(frozen=True)
class Guard:
    """An ASGI application around another: 403, 401 and 413 are its own."""

    app: Callable[[Message, Receive, Send], Awaitable[None]]
    names: Sequence[str] = ()
    key: str | None = None
    most: int = 1 << 20
    patience: float = 120.0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request by, or answer it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        refused = self.look(scope)
        if refused is not None:
            return await refused(scope, receive, send)
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # uvicorn leaves out the body
        try:
            return await self.app(asked, self.limited(receive), send)
        finally:
            scope["route"] = asked.get("route")  # for who counts requests by their routes

    def look(self, scope: Message) -> Response | None:
        """The refusal of a request, by its headers."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        host = [value.decode("latin-1") for name, value in headers if name == b"host"]
        port = int((scope.get("server") or ("", 0))[1] or 0)
        if not answers_to(host, port, self.names):
            return refusal(403, f"forbidden: ask for http://127.0.0.1:{port}/, or start the server with --names")
        if self.key is not None and scope["path"].startswith(KEPT) and scope["method"] != "OPTIONS":
            given = next((value for name, value in headers if name == b"authorization"), b"")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                return refusal(401, "this server needs its key: send it as Authorization: Bearer KEY")
        length = next((value for name, value in headers if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > self.most:
            return refusal(413, f"a request has at most {self.most} bytes")
        return None

    def limited(self, receive: Receive) -> Receive:
        """The same, up to the largest body, and without patience for one that does not come to its end."""
        size, whole, until = 0, False, asyncio.get_running_loop().time() + self.patience

        async def more() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request did not come to its end") from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self.most:
                raise HTTPException(413, f"a request has at most {self.most} bytes")
            return message

        return more
