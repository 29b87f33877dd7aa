"""`tsdfm serve` as a process: it says where it is, drains on SIGTERM, survives kill -9, and refuses in one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_nets import save_run, tiny_spec

from processes import Child
from tsdfm import load
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.serve.run import listening

HTTP = httpx.Client(timeout=600, verify=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs") / "tiny"
    save_run(home, tiny_spec())
    return home


def command(environment: dict[str, str], *words: str) -> None:
    os.environ.update(environment)
    sys.exit(main(list(words)))


@contextmanager
def serving(*words: str, **environment: str) -> Iterator[tuple[Child, str]]:
    """The process, and where it says that it is; whatever happens, it does not outlive the block."""
    child = Child(command, environment, "serve", *words)
    try:
        while "http://" not in (said := child.said()):
            assert child.poll() is None, said
            time.sleep(0.01)
        yield child, "http://" + said.split("http://")[1].split("/")[0]
    finally:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


def ask(address: str, **body: Any) -> httpx.Response:
    return HTTP.post(f"{address}/v1/completions", json={"model": "tiny", "prompt": "Mia", "echo": True, **body})


def test_sigterm_finishes_what_was_begun(home: Path) -> None:
    answers = list[httpx.Response]()
    with serving(str(home), "--port", "0") as (child, address):
        thread = threading.Thread(target=lambda: answers.append(ask(address, steps=300, seed=1)))
        thread.start()
        while thread.is_alive() and "tsdfm_rows_live 1.0" not in HTTP.get(f"{address}/metrics").text:
            time.sleep(0.001)  # on a busy machine the text may be written between two looks
        os.kill(child.pid, signal.SIGTERM)
        thread.join()
        assert child.wait() == 0
        assert "Traceback" not in child.said()
    assert answers[0].status_code == 200
    wanted = load(home).sample(steps=300, seed=1, prefix="Mia", batch=1)
    assert [choice["text"] for choice in answers[0].json()["choices"]] == wanted.texts


def test_after_kill_9_the_same_command_serves_the_same_texts(home: Path) -> None:
    with serving(str(home), "--port", "0") as (child, address):
        before = ask(address, seed=7).json()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    with serving(str(home), "--port", address.rpartition(":")[2]) as (_, again):
        after = ask(again, seed=7).json()
    assert again == address
    assert (after["choices"], after["system_fingerprint"]) == (before["choices"], before["system_fingerprint"])


def test_the_shipped_model_answers_the_command_of_the_page() -> None:
    """docs/serving.md as it is written, but for the port."""
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^(curl .*?})'$", text, re.MULTILINE | re.DOTALL)
    words = shlex.split(f"{command}'".replace("\\\n", " "))
    with serving("--port", "0") as (_, address):
        asked = [word.replace("http://127.0.0.1:8000", address) for word in words]
        if shutil.which("curl"):
            said = subprocess.run([*asked, "--silent"], capture_output=True, text=True, check=True).stdout
        else:
            body = json.loads(words[words.index("-d") + 1])
            said = HTTP.post(f"{address}/v1/completions", json=body).text
    wanted = load("tsdfm-stories").sample(n=1, steps=8, seed=1, prefix="One day, a dog named Max was hungry.", batch=1)
    assert "One day, a dog named Max was hungry." + json.loads(said)["choices"][0]["text"] == wanted.texts[0]


def test_the_key_may_come_from_the_environment(home: Path) -> None:
    with serving(str(home), "--port", "0", TSDFM_API_KEY="sesame") as (_, address):
        assert ask(address).status_code == 401
        assert HTTP.get(f"{address}/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def test_refusals(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused(capsys, str(home), "--port", port)
    assert "no checkpoint or run" in refused(capsys, str(tmp_path / "gone"), "--port", "0")
    assert "two models are called tiny" in refused(capsys, str(home), str(home), "--port", "0")
    for words, said in {
        "--port 70000": "port must be from 0 to 65535",
        "--queue 0": "queue must be at least 1",
        "--deadline 0": "deadline must be above 0",
        "--deadline 1e7": "deadline must be above 0 and at most 86400",
        "--max-n 20 --queue 10": "raise --queue",
        "--shapes 0": "shapes must be at least 1",
        "--workers 2 --device cuda:1": "one device",
        "--names http://x": "http://x is no name of a machine",
        "--names x:80": "leave out http://, the port",
        "--origins https://ok.org/": "https://ok.org/ is no origin",
        "--origins example.org": "write one as https://example.org",
        "--origins https://Ok.org": "in small letters",
        "--origins https://ok.org:443": "without a path or the usual port",
        "--origins https://ok.org?x": "is no origin",
        "--origins https://*.ok.org": "is no origin",
        "--origins https://ok.org:": "is no origin",
        "--host no.such.host.invalid": "cannot listen",
    }.items():
        assert said in refused(capsys, *words.split())


def test_an_empty_key_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "api_key is empty" in refused(capsys, str(home), "--port", "0", "--api-key", "")
    monkeypatch.setenv("TSDFM_API_KEY", "")
    assert "TSDFM_API_KEY is empty" in refused(capsys, str(home), "--port", "0")


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'tsdfm[serve]'" in refused(capsys)


def test_a_port_that_another_server_will_listen_at_is_taken() -> None:
    sock = listening("127.0.0.1", 0)
    with sock, pytest.raises(UserError, match="choose another"):
        listening("127.0.0.1", sock.getsockname()[1])
