"""Serve one page on this machine's own address, for browsers that reach it through a tunnel."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tsdfm.errors import UserError

HOST = "127.0.0.1"


def server_of(page: bytes, port: int) -> ThreadingHTTPServer:
    """A server that knows this page and nothing else, not yet running; port 0 finds a free one."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "tsdfm", ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            found = self.path.split("?")[0] in ("/", "/index.html")
            content = page if found else b"not found\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8" if found else "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body:
                self.wfile.write(content)

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
