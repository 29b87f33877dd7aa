"""A real server on loopback, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from serve_parts import running

from tsdfm.serve.app import create_app
from tsdfm.serve.patience import HEAD, impatient, patient
from tsdfm.serve.scheduler import Scheduler
from tsdfm.serve.served import Served
from tsdfm.serve.settings import ServeSettings


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
