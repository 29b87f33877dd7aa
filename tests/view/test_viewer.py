"""`tsdfm view` and the recording of trajectories: files, runs, pipelines; page, port and terminal."""

from __future__ import annotations

import http.client
import json
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from unicodedata import category

import pytest
import torch
from tiny_nets import save_run, tiny_spec
from view_parts import save_compass, way

from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.errors import UserError
from tsdfm.samples.trajectory import Trajectory
from tsdfm.view.record import record_trajectories
from tsdfm.view.serve import hosts_of, server_of


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the browser was asked to open."""
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or True)
    return asked


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's folder: a teacher and a student of two sources, and a compass of one."""
    home = tmp_path_factory.mktemp("home")
    for source in ("uniform", "mask"):
        for name, step_size in (("teacher", False), ("fs-dfm", True)):
            place = home / f"{name}-{source}"
            save_run(place, tiny_spec(source=source, step_size=step_size))
            for manifest in place.rglob("manifest.json"):
                manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "stage": name}))
    save_compass(home / "compass-mask", tiny_spec(source="mask"))
    return home


def test_recorded_ways_share_their_noise_and_know_their_energy(home: Path, tmp_path: Path) -> None:
    models = [home / "teacher-mask", home / "fs-dfm-mask"]
    paths = record_trajectories(models, home / "compass-mask", tmp_path / "deep", steps=4, n=2, seed=5)
    assert [path.name for path in paths] == ["teacher-mask-4.json", "fs-dfm-mask-4.json"]
    compass = load_compass(home / "compass-mask", "cpu")
    ways = [Trajectory.load(path) for path in paths]
    assert [row.start for row in ways[0].rows] == [row.start for row in ways[1].rows]
    assert ways[0].rows[0].states() != ways[1].rows[0].states()
    for made in ways:
        assert (made.steps, made.seed, len(made.rows), made.guide) == (4, 5, 2, None)
        assert made.compass == compass.sha256[:16]
        for row in made.rows:
            states = torch.tensor([state for state, _ in row.states()])
            told = [row.energy, *(step.energy for step in row.steps)]
            assert told == pytest.approx(compass.energy(states).tolist(), abs=1e-3)


def test_without_a_compass_there_is_no_energy(home: Path, tmp_path: Path) -> None:
    (path,) = record_trajectories([home / "teacher-uniform"], None, tmp_path, steps=2, n=1)
    assert "energy" not in path.read_text()
    assert "compass" not in json.loads(path.read_text())


def test_recording_refusals(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="do not belong together"):
        record_trajectories([home / "teacher-uniform"], home / "compass-mask", tmp_path)
    with pytest.raises(UserError, match="both called teacher"):
        record_trajectories([home / "teacher-mask", home / "teacher-mask"], None, tmp_path, steps=1, n=1)


def test_a_file_opens_in_the_browser(tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file, page = way().save(tmp_path / "way.json"), tmp_path / "pages" / "way.html"
    assert main(["view", str(file), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert opened == [page.resolve().as_uri()]
    assert "How the texts come to be" in page.read_text(encoding="utf-8")
    assert main(["view", str(file), str(file), "--no-open"]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.read_text(encoding="utf-8").count('data-player="') == 1  # the same way twice stands side by side
    written.unlink()
    assert len(opened) == 1


def test_a_pipeline_plays_what_lies_there_or_samples(home: Path, tmp_path: Path, opened: list[str]) -> None:
    recorded = home / "report" / "trajectories" / "x.json"
    way("recorded").save(recorded)
    page = tmp_path / "page.html"
    assert main(["view", str(home), "--no-open", "--out", str(page)]) == 0
    assert "recorded" in page.read_text(encoding="utf-8")
    assert main(["view", str(home), "--no-open", "--out", str(page), "--sample", "--steps", "2", "--n", "1"]) == 0
    text = page.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    told = [[(p["name"], p["rows"][0]["energy"] is not None) for p in player["panels"]] for player in data["players"]]
    assert told == [[("teacher", False), ("fs-dfm", False)], [("teacher", True), ("fs-dfm", True)]]  # uniform, mask
    assert opened == []


def test_a_run_plays_in_the_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "view",
        str(home / "fs-dfm-mask"),
        "--terminal",
        "--steps",
        "2",
        "--n",
        "1",
        "--compass",
        str(home / "compass-mask"),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    for word in ("mask source, seed 0", "fs-dfm   step 0/2", "step 2/2", "energy", "confidence"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nothing at nowhere"),
        (["."], "neither trajectories nor trained models"),
        (["x", "--serve", "70000"], "serve must be from 0 to 65535"),
        (["x", "--terminal", "--serve", "0"], "--terminal makes no page"),
    ],
)
def test_mistakes(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("live", [[], ["--live"]])
def test_a_model_cannot_steer_the_terminal(home: Path, live: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of noise, a model of bytes writes any of them; what is given stands in every text."""
    words = [
        "sample",
        str(home / "teacher-uniform"),
        "--n",
        "4",
        "--steps",
        "2",
        "--prefix",
        "\x1b[2J\x1b]0;owned\x07\r",
    ]
    assert main([*words, *live]) == 0
    shown = capsys.readouterr()
    assert r"\x1b[2J\x1b]0;owned\x07\r" in shown.out
    assert not {c for c in shown.out + shown.err if c not in "\n\t" and category(c) in ("Cc", "Cf")}


PAGE = "<p>é</p>".encode()


@pytest.fixture
def port() -> Iterator[int]:
    """Where the page is served."""
    with server_of(PAGE, 0) as server:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(port)
        finally:
            server.shutdown()


def answer(port: int, path: str = "/", hosts: Sequence[str] | None = None, method: str = "GET") -> tuple[int, bytes]:
    """What the server says to these Host headers; none is what a browser sends."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    asked.putrequest(method, path, skip_host=hosts is not None)
    for host in hosts or ():
        asked.putheader("Host", host.replace("PORT", str(port)))
    asked.endheaders()
    given = asked.getresponse()
    body = given.read()
    asked.close()
    return given.status, body


def test_the_server_gives_the_page_to_this_machine_alone(port: int) -> None:
    assert answer(port) == (200, PAGE)
    assert answer(port, "/?x=1") == (200, PAGE)
    assert answer(port, "/../etc/passwd") == (404, b"not found\n")
    with pytest.raises(UserError, match="choose another"):
        server_of(b"", port)


@pytest.mark.parametrize("host", ["localhost:PORT", "LocalHost:PORT", "127.0.0.1:PORT", "[::1]:PORT"])
def test_the_server_knows_its_own_names(port: int, host: str) -> None:
    assert answer(port, hosts=[host]) == (200, PAGE)
    assert answer(port, hosts=[host], method="HEAD") == (200, b"")


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:PORT"],
        ["evil.example"],
        ["localhost.evil.example:PORT"],
        ["evil.example@127.0.0.1:PORT"],
        ["127.0.0.1"],
        ["localhost:1"],
        ["127.0.0.1:PORT0"],
        ["127.0.0.1:PORT, evil.example"],
        ["127.0.0.1:PORT", "evil.example:PORT"],
        [""],
        [],
    ],
)
def test_a_page_of_another_name_reads_nothing(port: int, hosts: list[str]) -> None:
    """DNS rebinding: a site's own name turned to 127.0.0.1 reaches the server, with that name in its Host header."""
    for path in ("/", "/index.html", "/nowhere"):
        status, body = answer(port, path, hosts)
        assert status == 403
        assert PAGE not in body
        assert b"forbidden: ask for http://127.0.0.1:" in body
    assert answer(port, hosts=hosts, method="HEAD") == (403, b"")


def test_a_browser_leaves_out_port_80() -> None:
    assert "localhost" in hosts_of(80)
    assert "localhost" not in hosts_of(8000)
