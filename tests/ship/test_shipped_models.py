"""Models by name: what comes with the package, and the commands without arguments."""

from __future__ import annotations

import json
import shutil
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from ship_parts import a_spec

import tsdfm
from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.compass.settings import CompassSettings
from tsdfm.distil.settings import StudentSettings
from tsdfm.errors import UserError
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.velocity import load_velocity
from tsdfm.store import bundle
from tsdfm.store.bundle import find_shipped
from tsdfm.store.files import file_sha256
from tsdfm.view.find import played
from tsdfm.view.settings import ViewSettings

Capture = pytest.CaptureFixture[str]


def test_names(models: Path) -> None:
    assert bundle.shipped_names() == ["tsdfm-stories"]
    student, teacher = tsdfm.load("tsdfm-stories", "cpu"), tsdfm.load("tsdfm-stories/teacher", "cpu")
    assert (student.method, teacher.method) == ("ts-dfm", "teacher")
    assert tsdfm.load("tsdfm-stories/student", "cpu").velocity.sha256 == student.velocity.sha256
    packed = file_sha256(models / "tsdfm-stories" / "compass.safetensors")
    assert load_compass("tsdfm-stories", "cpu").sha256 == load_compass("tsdfm-stories/compass", "cpu").sha256 == packed


def test_an_input_of_a_training_means_the_model_it_asks_for(models: Path, shipping: Path) -> None:
    """A bundle given as the teacher is its teacher, not the student that its folder means elsewhere."""
    home = models / "tsdfm-stories"
    teacher = tsdfm.load("tsdfm-stories/teacher", "cpu").velocity.sha256
    assert load_velocity(Path("tsdfm-stories"), role="teacher").sha256 == teacher
    assert load_velocity(home, role="teacher").sha256 == load_velocity(home / "teacher").sha256 == teacher
    for name, role in (("teacher", "teacher"), ("compass", "compass"), ("proposer", "student")):
        assert bundle.on_disk(Path("tsdfm-stories"), name) == home / f"{role}.safetensors"
    for stage, role in ((DFMSettings, "teacher"), (CompassSettings, "compass"), (StudentSettings, "student")):
        assert bundle.on_disk(Path("tsdfm-stories"), "init_from", stage.START) == home / f"{role}.safetensors"
    assert bundle.on_disk(shipping / "teacher", "teacher") == shipping / "teacher"
    assert bundle.on_disk(home, "tokens") == home


def test_names_also_work_inside_a_bundle_or_beside_a_manifest_of_others(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("manifest.json").write_text('["of another program"]')
    wanted = tsdfm.load("tsdfm-stories", "cpu").velocity.sha256
    monkeypatch.chdir(models / "tsdfm-stories")
    assert tsdfm.load("tsdfm-stories", "cpu").velocity.sha256 == wanted


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tsdfm-smal", r"no checkpoint or run at tsdfm-smal, nor a shipped .* \(shipped: tsdfm-stories\)"),
        ("tsdfm-smal/teacher", r"\(shipped: tsdfm-stories\)"),
        ("tsdfm-stories/techer", "tsdfm-stories has no 'techer'; it has: student, teacher, compass"),
        ("tsdfm-stories/compass", "holds no velocity network"),
        ("runs/mine/teacher", "no checkpoint or run at runs/mine/teacher: give a run's folder, .* or a shipped name$"),
        ("../models/other", "no checkpoint or run at ../models/other: give a run's folder, .* or a shipped name$"),
    ],
)
def test_names_that_mean_nothing(models: Path, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        tsdfm.load(name, "cpu")


def test_a_teacher_is_no_compass(models: Path) -> None:
    with pytest.raises(UserError, match=r"teacher\.safetensors holds no compass"):
        load_compass("tsdfm-stories/teacher", "cpu")
    with pytest.raises(UserError, match="averaged weights alone"):
        tsdfm.load("tsdfm-stories", "cpu", which="model")


def test_what_lies_on_the_disk_goes_before_a_name(models: Path, shipping: Path) -> None:
    shutil.copytree(shipping / "bf16", "tsdfm-stories")
    assert tsdfm.load("tsdfm-stories", "cpu").velocity.sha256 == file_sha256(shipping / "bf16" / "student.safetensors")
    assert tsdfm.load("tsdfm-stories/teacher", "cpu").velocity.checkpoint == Path("tsdfm-stories/teacher.safetensors")
    shutil.rmtree("tsdfm-stories")
    shutil.copytree(shipping / "teacher", "tsdfm-stories")  # a run of that name
    assert tsdfm.load("tsdfm-stories", "cpu").method == "teacher"
    shutil.rmtree("tsdfm-stories")
    Path("tsdfm-stories").mkdir()
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        tsdfm.load("tsdfm-stories", "cpu")


def texts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The headings of the texts that were printed."""
    return [line.split("─")[0].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("text ")]


def test_sampling_without_arguments(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample"]) == 0
    assert texts(capsys) == ["text 0, seed 0, 8 passes", "text 1, seed 0, 8 passes"]
    assert main(["sample", "--n", "1", "--steps", "3", "--seed", "5", "--out", "t.jsonl"]) == 0
    assert texts(capsys) == ["text 0, seed 5, 3 passes"]
    (line,) = map(json.loads, Path("t.jsonl").read_text().splitlines())
    assert line["tokens"] == tsdfm.load("tsdfm-stories").sample(1, 3, 5).tokens[0].tolist()


def test_a_bundle_says_how_it_is_sampled(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = models / "tsdfm-stories" / "manifest.json"
    own = {"n": 1, "steps": 5, "temperature": 0.5, "jump": "euler"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "defaults": own}))
    student = tsdfm.load("tsdfm-stories")

    def made(*flags: str) -> list[int]:
        assert main(["sample", *flags, "--out", "t.jsonl"]) == 0
        found: list[int] = json.loads(Path("t.jsonl").read_text().splitlines()[0])["tokens"]
        return found

    assert made() == student.sample(1, 5, 0, temperature=0.5, jump="euler").tokens[0].tolist()
    assert texts(capsys) == ["text 0, seed 0, 5 passes"]
    assert made("--temperature", "1") == student.sample(1, 5, 0, jump="euler").tokens[0].tolist()
    asked = student.sample(1, 5, 0, temperature=0.5, jump="cumulative").tokens[0].tolist()
    assert made("--jump", "cumulative") == asked != made()
    capsys.readouterr()
    made("tsdfm-stories/teacher")  # the defaults are the student's
    assert texts(capsys) == [f"text {i}, seed 0, 16 passes" for i in range(4)]


def test_a_run_is_sampled_as_ever(models: Path, shipping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(shipping / "student")]) == 0
    assert texts(capsys) == [f"text {i}, seed 0, 16 passes" for i in range(4)]


def test_a_shipped_model_is_guided_by_its_own_compass(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for more in ([], ["--compass", "tsdfm-stories"]):
        assert (
            main(["sample", "tsdfm-stories", "--guide", "sequence", "--n", "1", "--navigate.blocks", "2", *more]) == 0
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["sample", "tsdfm-stories", "--n", "1"]) == 0
    assert capsys.readouterr().out != texts[0]


def test_the_shipped_compass_guides(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--guide", "sequence", "--compass", "tsdfm-stories", "--n", "1"]) == 0
    assert "compass calls" in capsys.readouterr().err
    assert main(["sample", "--save-trajectory", "way.json", "--compass", "tsdfm-stories/compass"]) == 0
    assert json.loads(Path("way.json").read_text())["compass"] == load_compass("tsdfm-stories", "cpu").sha256[:16]


def test_viewing_without_arguments(models: Path) -> None:
    assert main(["view", "--no-open", "--out", "page.html"]) == 0
    text = Path("page.html").read_text(encoding="utf-8")
    (player,) = json.loads(text.split('id="data">')[1].split("</script>")[0])["players"]
    assert [panel["name"] for panel in player["panels"]] == ["teacher", "ts-dfm"]
    starts = [[row["start"] for row in panel["rows"]] for panel in player["panels"]]
    assert starts[0] == starts[1]
    assert len(starts[0]) == 3
    for panel in player["panels"]:
        assert [len(row["steps"]) for row in panel["rows"]] == [8, 8, 8]
        states = torch.tensor([row["start"] for row in panel["rows"]])
        energies = load_compass("tsdfm-stories", "cpu").energy(states).tolist()
        assert [row["energy"] for row in panel["rows"]] == pytest.approx(energies, abs=1e-3)


def test_viewing_plays_each_at_its_own_temperature(models: Path) -> None:
    file = models / "tsdfm-stories" / "manifest.json"
    own = {"n": 1, "steps": 8, "temperature": 0.25, "jump": "auto"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "defaults": own}))
    found = find_shipped(Path("tsdfm-stories"))
    assert found is not None
    teacher, student = played(found[0], None, ViewSettings(n=1))
    for way, name, temperature in ((teacher, "tsdfm-stories/teacher", 1.0), (student, "tsdfm-stories", 0.25)):
        made = tsdfm.load(name).sample(1, 8, 0, temperature=temperature).tokens
        assert list(list(way.rows[0].states())[-1][0]) == made[0].tolist()
    assert [way.method for way in (teacher, student)] == ["teacher", "ts-dfm, T = 0.25"]


def test_viewing_in_the_terminal(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--terminal", "--n", "1", "--steps", "2"]) == 0
    shown = capsys.readouterr().out
    for word in ("teacher   step 0/2", "ts-dfm   step 2/2", "energy"):
        assert word in shown
    assert main(["view", "tsdfm-stories/teacher", "--terminal", "--n", "1", "--steps", "2"]) == 0
    assert "ts-dfm" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["sample"], ["view"], ["card"]])
def test_a_copy_without_models_says_what_to_do(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "MODELS", tmp_path / "nothing")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("tsdfm: no model came with this copy of tsdfm: name a run folder or a bundle")
    assert said.count("\n") == 1
    with pytest.raises(UserError, match=r"nor a shipped model of that name \(none is shipped\)"):
        tsdfm.load("tsdfm-stories", "cpu")


def test_cards_by_name(models: Path, shipping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["card"], ["card", "tsdfm-stories"], ["card", "tsdfm-stories/teacher"]):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith("# tsdfm-stories\n")
    for words, said in (
        (["card", "other"], "shipped: tsdfm-stories"),
        (["card", str(shipping / "student")], "no bundle"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_every_model_of_the_package_is_whole() -> None:
    """Whatever lies in the package's own folder loads, belongs together, and keeps to the limit."""
    for name in bundle.shipped_names():
        found = bundle.read_bundle(bundle.MODELS / name)
        assert found.manifest["name"] == name
        student = tsdfm.load(name, "cpu")
        for role in found.roles[1:]:
            if role == "compass":
                load_compass(name, "cpu").match(student.velocity.spec, "the student")
            else:
                student.velocity.spec.match(tsdfm.load(f"{name}/{role}", "cpu").velocity.spec, "the teacher")
    files = [path for path in bundle.MODELS.rglob("*") if path.is_file()] if bundle.MODELS.is_dir() else []
    assert sum(path.stat().st_size for path in files) <= 30e6


def test_the_wheel_takes_the_models_along() -> None:
    root = Path(__file__).parents[2]
    rules = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    model = Path(bundle.__file__).parents[1].joinpath("ship", "models", "x", "student.safetensors").relative_to(root)
    assert any(fnmatch(str(model), pattern) for pattern in rules["artifacts"])
    assert any(model.is_relative_to(place) for place in rules["targets"]["wheel"]["packages"])


def test_a_report_about_a_shipped_model(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name: student, teacher and compass are found, and figures need held-out text of the same tokenizer."""
    from tsdfm.report.runs import find_runs

    found = find_runs([Path("tsdfm-stories")])
    assert [(run.name, run.method, run.source) for run in found.models] == [
        ("tsdfm-stories/teacher", "teacher", "uniform"),
        ("tsdfm-stories/student", "ts-dfm", "uniform"),
    ]
    assert found.compass_for(found.models[1]) == models / "tsdfm-stories" / "compass"
    assert [run.started_from() for run in found.models] == [None, "origin"]  # which is not here to be asked
    assert found.models[1].parameters() == sum(p.numel() for p in tsdfm.load("tsdfm-stories").velocity.net.parameters())
    alone = find_runs([Path("tsdfm-stories/teacher"), Path("tsdfm-stories/teacher")])
    assert [run.name for run in alone.models] == ["tsdfm-stories/teacher"]
    assert alone.compass_for(alone.models[0]) == models / "tsdfm-stories" / "compass"
    assert main(["report", "policy", "tsdfm-stories", "--world", "small"]) == 2
    assert "has no place for a report: give --out" in capsys.readouterr().err
    assert not (models / "tsdfm-stories" / "report").exists()


def test_a_shipped_model_against_held_out_text(models: Path, tmp_path: Path, capsys: Capture) -> None:
    """Its own tokenizer is there by its name; rows of another one are refused."""
    (tmp_path / "texts").mkdir()
    for n in range(30):
        (tmp_path / "texts" / f"{n}.txt").write_text(f"Ann saw {n} of it.")
    made = ["--corpus", str(tmp_path / "corpus"), "--length", str(a_spec().length), "--layout", "document"]
    assert main(["corpus", "--path", str(tmp_path / "texts"), "--out", str(tmp_path / "corpus"), "--valid", "0.4"]) == 0
    assert main(["tokens", *made, "--tokenizer-files", "tsdfm-stories", "--out", str(tmp_path / "tokens")]) == 0
    assert main(["tokens", *made, "--vocab-size", "260", "--out", str(tmp_path / "others")]) == 0
    asked = ["report", "measure", "tsdfm-stories", "--steps", "2", "--teacher-steps", "2", "--samples", "2"]
    asked += ["--world", "small", "--out", str(tmp_path / "report")]
    assert main([*asked, "--tokens", str(tmp_path / "tokens")]) == 0
    rows = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert {row["method"] for row in rows} >= {"teacher", "ts-dfm"}
    capsys.readouterr()
    assert main([*asked, "--tokens", str(tmp_path / "others")]) == 2
    assert "make rows of your text with `tsdfm tokens --tokenizer-files tsdfm-stories" in capsys.readouterr().err
    assert main(["report", "main", "tsdfm-stories/compass", *asked[7:]]) == 2
    assert "name a teacher or a student" in capsys.readouterr().err


def test_two_bundles_in_a_table(models: Path, tmp_path: Path, capsys: Capture) -> None:
    """Each by its own name and with its own compass; with two tokenizers there is no table."""
    shutil.copytree(models / "tsdfm-stories", tmp_path / "mine")
    about = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    asked = ["report", "policy", "tsdfm-stories", str(tmp_path / "mine"), "--steps", "2", "--samples", "2"]
    asked += ["--world", "small", "--out", str(tmp_path / "report")]
    assert main(asked) == 0
    rows = json.loads((tmp_path / "report" / "policy.json").read_text())["rows"]
    names = {row["method"] for row in rows if not row.get("paper")}
    assert names == {"ts-dfm [tsdfm-stories/student]", "ts-dfm [mine/student]"}
    for member in about["members"].values():
        member.get("model", member.get("compass"))["tokenizer"] = "other"
    (tmp_path / "mine" / "manifest.json").write_text(json.dumps(about))
    capsys.readouterr()
    assert main(asked) == 2
    assert "have different tokenizers" in capsys.readouterr().err


def test_names_of_tokenizers(models: Path, tmp_path: Path, capsys: Capture) -> None:
    """What is wrong leaves nothing behind, and the mended command goes through."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Ann has a red ball. " * 40)
    (tmp_path / "empty").mkdir()
    assert main(["corpus", "--path", str(tmp_path / "texts"), "--out", str(tmp_path / "corpus")]) == 0
    made = ["tokens", "--corpus", str(tmp_path / "corpus"), "--length", "20", "--out", str(tmp_path / "tokens")]
    capsys.readouterr()
    for name, said in (
        ("tsdfm-smal", "nor a shipped model of that name (shipped: tsdfm-stories)"),
        ("tsdfm-stories/nope", "has no 'nope'"),
        (str(tmp_path / "empty"), "no tokenizer.json"),
    ):
        assert main([*made, "--tokenizer-files", name]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")
        assert not (tmp_path / "tokens").exists()
    assert main([*made, "--tokenizer-files", "tsdfm-stories"]) == 0
    assert "4 rows held out" in capsys.readouterr().err  # the end of the only document
