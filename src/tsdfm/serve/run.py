"""`tsdfm serve`: load the models, listen, and write until told to stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tsdfm.errors import UserError
from tsdfm.serve.settings import ServeSettings

if TYPE_CHECKING:
    from tsdfm.serve.served import Served

KEY = "TSDFM_API_KEY"
BACKLOG = 2048  # connections that wait until the server is there; uvicorn says the same


def run(settings: ServeSettings) -> None:
    """Serve until a signal. SIGTERM and Ctrl-C finish what was begun; a second Ctrl-C does not wait for it."""
    try:
        import uvicorn

        from tsdfm.serve.app import create_app
        from tsdfm.serve.patience import HEAD, impatient, patient
    except ImportError as problem:
        raise UserError(f"{problem.name} is not installed: pip install 'tsdfm[serve]'") from None
    from tsdfm.serve.intake import Limits
    from tsdfm.serve.remote import Remote

    settings = replace(settings, api_key=key_of(settings))
    sock = listening(settings.host, settings.port)
    impatient(sock, settings.deadline)
    limits = Limits(rows=settings.rows or 0, queue=settings.queue, deadline=settings.deadline)
    remote = Remote(loads(settings), limits)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            say(sock, settings, list(remote.models))

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            remote.closing = True
            if sig == signal.SIGTERM:  # the end that was asked for: exit code 0
                self.should_exit = True
            else:
                super().handle_exit(sig, frame)

    how: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    how["http"] = patient(min(HEAD, settings.deadline))
    try:
        patience = int(settings.deadline) + 1
        config = uvicorn.Config(create_app(remote, settings)[1], timeout_graceful_shutdown=patience, **how)
        Server(config).run([sock])
    finally:
        remote.close(wait=False)


def key_of(settings: ServeSettings) -> str | None:
    """The key that clients must send: the flag's, or the environment's."""
    if settings.api_key is not None:
        return settings.api_key
    if (found := os.environ.get(KEY)) == "":
        raise UserError(f"the variable {KEY} is empty: give it a key, or unset it")
    return found


def loads(settings: ServeSettings) -> list[Callable[[], list[Served]]]:
    """For each device a function that loads its models, to be called in its own process."""
    from tsdfm.engine.distributed import pick_device
    from tsdfm.serve.served import names_of
    from tsdfm.store.bundle import default_model

    paths: Sequence[Path] = settings.models or (default_model(),)
    kind = pick_device(settings.device)
    places = [str(kind)] if settings.workers == 1 else [f"cuda:{n}" for n in range(settings.workers)]
    places = places if kind.type == "cuda" else ["cpu"] * settings.workers
    quick = "compile" if settings.quick == "auto" and kind.type == "cuda" else settings.quick
    about: dict[str, Any] = {"quick": quick, "compass": settings.compass}
    about |= {"rows": settings.rows, "shapes": settings.shapes}
    named = list(zip(names_of(paths), paths, strict=True))
    return [partial(load_all, named, place, about) for place in places]


def load_all(named: Sequence[tuple[str, Path]], place: str, about: dict[str, Any]) -> list[Served]:
    """The models of a device."""
    from tsdfm.serve.served import load_served

    return [load_served(path, place, name=name, **about) for name, path in named]


def listening(host: str, port: int) -> socket.socket:
    """A socket, taken before anything is loaded: a port in use is told at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = socket.socket(found[0][0], socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found[0][4])
        sock.listen(BACKLOG)  # else another server could take the port until this one has loaded
    except OSError as problem:
        raise UserError(f"cannot listen at {host}, port {port} ({problem.strerror}): choose another") from None
    return sock


def say(sock: socket.socket, settings: ServeSettings, names: Sequence[str]) -> None:
    """Where the server is to be found."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}/   {', '.join(names)}   (Ctrl-C ends)", flush=True)
    if host not in ("127.0.0.1", "::1") and settings.api_key is None:
        print(f"anyone who reaches {host} may ask: --api-key, or the variable {KEY}, asks for a key", flush=True)
