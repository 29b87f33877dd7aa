"""A real server on loopback, in a thread of the test, and how it is asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from serve_parts import running, served

from tsdfm.serve.app import create_app
from tsdfm.serve.patience import HEAD, impatient, patient
from tsdfm.serve.scheduler import Scheduler
from tsdfm.serve.served import Served
from tsdfm.serve.settings import ServeSettings

MODEL = served(source="uniform", step_size=True)
HTTP = httpx.Client(timeout=600, verify=False, limits=httpx.Limits(max_connections=None))  # no certificates to load
Server = tuple[str, Scheduler]


@contextmanager
def listening(
    *models: Served,
    clock: Any = None,
    rows: int = 8,
    queue: int = 256,
    deadline: float = 600.0,
    head: float = HEAD,
    **settings: Any,
) -> Iterator[tuple[str, Scheduler]]:
    """Its address, and its scheduler."""
    with running(*models, clock=clock, rows=rows, queue=queue, deadline=deadline) as scheduler:
        asked = ServeSettings(queue=max(queue, 16), deadline=deadline, **settings)
        _, guarded = create_app(scheduler, asked)
        sock = socket.create_server(("127.0.0.1", 0))
        impatient(sock, deadline)
        begun = threading.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                begun.set()

        server = Server(uvicorn.Config(guarded, log_level="warning", lifespan="on", http=patient(head)))
        thread = threading.Thread(target=server.run, args=([sock],))
        thread.start()
        try:
            assert begun.wait(600)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}", scheduler
        finally:
            server.should_exit = True
            scheduler.close(wait=False)
            thread.join()


def post(server: Server, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return HTTP.post(server[0] + path, json={"model": "tiny", **body})


def events(answer: httpx.Response) -> list[Any]:
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
