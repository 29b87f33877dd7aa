"""Coded bundles: a student that began as its teacher, a size that is kept, bundles packed again, and older ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from ship_parts import a_spec, save, ship
from test_ship_run import by_hand
from tiny_nets import stir

from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.nn.velocity import load_velocity
from tsdfm.store.checkpoint import Store
from tsdfm.store.files import file_sha256


@pytest.fixture(scope="module")
def related(shipping: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HOME/{student, teacher, compass} where the student is the teacher, moved by a twentieth, and `coded` of them."""
    home = tmp_path_factory.mktemp("related")
    for role in ("teacher", "compass"):
        shutil.copytree(shipping / role, home / role)
    spec = a_spec(step_size=True)
    save(home / "student", "ts-dfm", spec, 1)
    weights = stir(spec.network(), 1, 0.2).state_dict()
    moved = stir(spec.network(), 9, 0.01).state_dict()
    for name, weight in load_velocity(home / "teacher").net.state_dict().items():
        if weights[name].shape == weight.shape:
            weights[name] = weight + 0.05 * moved[name]
    manifest = json.loads((home / "student" / "manifest.json").read_text())
    Store(home / "student").save(50, {"model": weights}, {"tokens": 12345}, manifest)
    return ship(home, home / "coded").parent


def test_a_student_is_stored_as_a_difference_from_its_teacher(related: Path) -> None:
    file = related / "coded" / "student.safetensors"
    names = load_file(file).keys()
    assert "head.weight/delta" in names
    assert file.stat().st_size < (related / "coded" / "teacher.safetensors").stat().st_size
    student, known = load_velocity(related / "coded"), by_hand(file)
    assert all(torch.equal(weight, known[name]) for name, weight in student.net.state_dict().items())
    trained = load_velocity(related / "student").net.state_dict()
    for name, weight in student.net.state_dict().items():
        torch.testing.assert_close(weight, trained[name], rtol=0, atol=float(trained[name].abs().max()) / 250)


@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_difference_needs_the_teacher_as_it_was(
    related: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(related / "coded", tmp_path / "copy")
    file = tmp_path / "copy" / "teacher.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1])) if how == "flipped" else file.unlink()
    assert main(["sample", str(tmp_path / "copy"), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert {"gone": "is missing", "flipped": "was changed after it was written"}[how] in said
    assert "teacher.safetensors" in said


def test_a_teacher_that_says_it_is_a_difference_is_refused(related: Path, tmp_path: Path) -> None:
    """Of itself it cannot be one: the line names the file, and nothing goes round in a circle."""
    shutil.copytree(related / "coded", tmp_path / "copy")
    shutil.copy(tmp_path / "copy" / "student.safetensors", tmp_path / "copy" / "teacher.safetensors")
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    for key in ("sha256", "bytes"):
        manifest["members"]["teacher"][key] = manifest["members"]["student"][key]
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Exception, match=r"teacher\.safetensors: .* is a difference from a teacher's that is not there"):
        load_velocity(tmp_path / "copy" / "teacher")


def test_a_size_is_kept_and_used(related: Path, tmp_path: Path) -> None:
    coarse = []
    for limit in (0.4, 0.33):
        out = ship(related, tmp_path / str(limit), "--limit-mb", str(limit))
        total = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        assert limit * 1e6 - 45_000 < total <= limit * 1e6  # 40 000 of them are kept for the manifest and the card
        manifest = json.loads((out / "manifest.json").read_text())
        coarse.append(manifest["coarse"])
        assert f"step is {coarse[-1]:.2%} of its root mean square" in (out / "card.md").read_text()
    assert json.loads((related / "coded" / "manifest.json").read_text())["coarse"] == 0 < coarse[0] < coarse[1]


def test_a_bundle_packed_again(related: Path, shipping: Path, tmp_path: Path) -> None:
    """What is known of its models stays, and the weights are those of the bundle, to half a step."""
    old = shipping / "int8"
    words = ["ship", str(old), "--teacher", str(old), "--compass", str(old), "--name", "again"]
    assert main([*words, "--out", str(tmp_path / "again")]) == 0
    before, after = (json.loads((place / "manifest.json").read_text()) for place in (old, tmp_path / "again"))
    for role, about in after["members"].items():
        assert about["packed_from"] == before["members"][role]["sha256"] == file_sha256(old / f"{role}.safetensors")
        assert about["sha256"] == file_sha256(tmp_path / "again" / f"{role}.safetensors")
        assert 0 < about["weights_error"] < 0.02
        for key in ("stage", "step", "tokens", "run", "parent", "settings", "parameters", "seed", "versions"):
            assert about[key] == before["members"][role][key]
        load = load_compass if role == "compass" else load_velocity
        was, now = (load(place / role, "cpu").net.state_dict() for place in (old, tmp_path / "again"))
        for name, weight in now.items():
            torch.testing.assert_close(weight, was[name], rtol=0, atol=float(was[name].abs().max()) / 250)


def test_bundles_of_the_first_format_still_load(shipping: Path, tmp_path: Path) -> None:
    shutil.copytree(shipping / "int8", tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    manifest["format"] = 1
    del manifest["coarse"]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    known = by_hand(tmp_path / "old" / "student.safetensors")
    found = load_velocity(tmp_path / "old").net.state_dict()
    assert all(torch.equal(weight, known[name]) for name, weight in found.items())
