"""Serve one page on this machine's own address, for browsers that reach it through a tunnel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tsdfm.errors import UserError

HOST = "127.0.0.1"
NAMES = ("localhost", HOST, "[::1]")  # what a browser may call this machine


def hosts_of(port: int) -> frozenset[str]:
    """The Host headers that are answered; a browser leaves out port 80."""
    return frozenset(f"{name}:{port}" for name in NAMES) | frozenset(NAMES if port == 80 else ())


def answers_to(asked: Sequence[str], port: int, names: Collection[str] = ()) -> bool:
    """Do we answer a request with these Host headers? `names` are more that we have, at any port; `*` is any name.

    Another site whose name has been turned to 127.0.0.1 (DNS rebinding) has its own name in the Host header: its
    scripts cannot read what is served here.
    """
    if len(asked) != 1:
        return False
    host = asked[0].strip().lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return host in hosts_of(port) or "*" in names or name in {each.lower() for each in names}


def server_of(page: bytes, port: int) -> ThreadingHTTPServer:
    """A server that knows this page and nothing else, not yet running; port 0 finds a free one.

    It answers only those who ask for this machine by its own name and port.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "tsdfm", ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            status, content = self._found()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8" if status == 200 else "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def _found(self) -> tuple[int, bytes]:
            port = int(self.connection.getsockname()[1])
            if not answers_to(self.headers.get_all("Host", []), port):
                return 403, f"forbidden: ask for http://{HOST}:{port}/, through a tunnel by the same port\n".encode()
            return (200, page) if self.path.split("?")[0] in ("/", "/index.html") else (404, b"not found\n")

        def log_message(self, *_: Any) -> None:
            """Say nothing for each request."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as problem:
        raise UserError(f"cannot serve at port {port} ({problem.strerror}): choose another, or 0 for any") from None


def serve(page: bytes, port: int) -> None:
    """Serve until interrupted."""
    with server_of(page, port) as server:
        found = server.server_address[1]
        print(
            f"http://{HOST}:{found}/   (Ctrl-C ends; from afar: ssh -L {found}:{HOST}:{found} this-machine)", flush=True
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
