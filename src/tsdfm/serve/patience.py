"""What a connection may cost: none is kept for a client that sends no whole request, or takes nothing of an answer."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 10.0  # seconds between two looks at a connection


def patient(seconds: float) -> type[H11Protocol]:
    """The protocol of connections that are cut when at two looks in a row they wait for the head of the same request.

    uvicorn ends those that send nothing after an answer, but not those that send nothing before one, or a byte at a
    time: each of them would hold a descriptor for ever.
    """

    class Patient(H11Protocol):
        behind: tuple[object] | None = None  # the request after which it waited for the next at the last look

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.look()

        def look(self) -> None:
            """Cut it, or look again."""
            answered = self.cycle is None or self.cycle.response_complete
            before, self.behind = self.behind, (self.cycle,) if answered and self.conn.their_state is h11.IDLE else None
            if before is not None and before == self.behind:
                self.transport.abort()
            elif self in self.connections:
                self.loop.call_later(seconds, self.look)

    return Patient


def impatient(sock: socket.socket, seconds: float) -> None:
    """A connection of this socket ends when its client has taken nothing for so long (where the system can)."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, max(1, int(seconds * 1000)))
