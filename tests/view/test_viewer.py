"""`tsdfm view` and the recording of trajectories: files, runs, pipelines; page, port and terminal."""

from __future__ import annotations

import http.client
import json
import threading
import webbrowser
from pathlib import Path

import pytest
import torch
from tiny_nets import save_run, tiny_spec
from view_parts import save_compass, way

from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.errors import UserError
from tsdfm.samples.trajectory import Trajectory
from tsdfm.view.record import record_trajectories
from tsdfm.view.serve import server_of


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
        (["x", "--serve", "70000"], "a port lies in 0 to 65535"),
        (["x", "--terminal", "--serve", "0"], "--terminal makes no page"),
    ],
)
def test_mistakes(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_server_gives_the_page_to_this_machine_alone() -> None:
    with server_of("<p>é</p>".encode(), 0) as server:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for path, status, body in (
                ("/", 200, "<p>é</p>".encode()),
                ("/?x=1", 200, "<p>é</p>".encode()),
                ("/../etc/passwd", 404, b"not found\n"),
            ):
                asked = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
                asked.request("GET", path)
                answer = asked.getresponse()
                assert (answer.status, answer.read()) == (status, body)
                asked.close()
        finally:
            server.shutdown()
        with pytest.raises(UserError, match="choose another"):
            server_of(b"", int(port))
