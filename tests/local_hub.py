"""A hub on this machine, which hands out the files of folders and takes in uploads, and what it is like without one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlparse

import pytest


class Hub(BaseHTTPRequestHandler):
    """What the hub's client asks for: files, lists of files, and uploads by git-lfs and commits of lines of JSON."""

    repositories: Mapping[str, Path] = {}
    home: Path | None = None  # where new repositories go
    objects: ClassVar[dict[str, bytes]] = {}  # large files that were uploaded, by their sha256

    def do_HEAD(self) -> None:
        self.file()

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        if path.startswith("/api/models/"):
            self.listing(path.removeprefix("/api/models/"))
        else:
            self.wfile.write(self.file())

    def folder(self, name: str) -> Path:
        if name in self.repositories or self.home is None:
            return self.repositories.get(name, Path("nowhere"))
        return self.home / name.replace("/", "--")

    def file(self) -> bytes:
        name, _, rest = urlparse(self.path).path.strip("/").partition("/resolve/")
        file = unquote(rest.partition("/")[2])
        path = self.folder(name) / file
        found = bool(file) and path.is_file()
        body = path.read_bytes() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", "0" * 40)
        if found:
            self.send_header("ETag", f'"{len(body)}-{path.name}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        return body

    def listing(self, rest: str) -> None:
        name = "/".join(rest.split("/")[:2])
        files = sorted(self.folder(name).iterdir()) if self.folder(name).is_dir() else []
        if "/tree/" in rest:
            rows = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40} for f in files]
            return self.answer(rows)
        if not self.folder(name).is_dir():
            return self.answer({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        return self.answer({"id": name, "sha": "0" * 40, "siblings": [{"rfilename": f.name} for f in files]})

    def do_POST(self) -> None:
        body, path = self.rfile.read(int(self.headers["Content-Length"])), urlparse(self.path).path
        address = f"http://{self.headers['Host']}"
        if path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.folder(name).mkdir(exist_ok=True)
            self.answer({"url": f"{address}/{name}", "name": name})
        elif "/preupload/" in path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if file.endswith(".safetensors") else "regular" for file in files]
            rows = zip(files, modes, strict=True)
            self.answer({"files": [{"path": f, "uploadMode": m, "shouldIgnore": False} for f, m in rows]})
        elif path.endswith("/info/lfs/objects/batch"):
            made = [
                {**each, "actions": {"upload": {"href": f"{address}/large/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": made})
        else:
            self.commit("/".join(path.removeprefix("/api/models/").split("/")[:2]), body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        self.answer({})

    def commit(self, name: str, body: bytes) -> None:
        if not self.folder(name).is_dir():
            return self.answer({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                (self.folder(name) / value["path"]).write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                (self.folder(name) / value["path"]).write_bytes(self.objects[value["oid"]])
        made = f"{name}/commit/{'0' * 40}"
        return self.answer({"commitUrl": f"http://{self.headers['Host']}/{made}", "commitOid": "0" * 40})

    def answer(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        always = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        for key, said in {**always, **(headers or {})}.items():
            self.send_header(key, said)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(folders: Mapping[str, Path], again: str = ":0", into: Path | None = None) -> Iterator[str]:
    """The address of a hub whose repositories `NAME` are folders; `again` is one that was served before.

    New repositories become folders of `into`.
    """

    class Handler(Hub):
        repositories, home = folders, into

    server = ThreadingHTTPServer(("127.0.0.1", int(again.rpartition(":")[2])), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def online(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """The hub is at `endpoint`, with an empty cache of its own; its client may not sleep before another try."""
    from huggingface_hub import constants

    def sleep(seconds: float) -> None:
        raise AssertionError(f"the hub's client tries again after {seconds} s")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # uploads by git-lfs, which needs no other server
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", sleep)
