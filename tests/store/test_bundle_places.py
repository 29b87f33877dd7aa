"""Where an input of a run is found again: by its hash, of a run or of a bundle's packed file."""

import json
import shutil
from pathlib import Path

import pytest

from tsdfm.store.bundle import MODELS, whereabouts
from tsdfm.store.files import file_sha256
from tsdfm.store.manifest import descent_of


def run_at(place: Path, said: str) -> str:
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"stage": "teacher", "said": said}))
    return file_sha256(place / "manifest.json")


def test_of_two_of_one_name_the_one_with_the_hash_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other, mine = run_at(tmp_path / "out" / "teacher", "other"), run_at(tmp_path / "x" / "teacher", "mine")
    was, run = Path("out/teacher"), tmp_path / "x" / "student"
    assert whereabouts(was, run, mine) == tmp_path / "x" / "teacher"
    assert whereabouts(was, run, other) == was
    assert whereabouts(was, run) == was
    assert whereabouts(was, run, "of neither") == was  # it may have been trained on
    shutil.rmtree(was)
    assert whereabouts(was, run, "of neither") is None


def test_a_bundle_that_was_moved_is_known_by_its_files(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "tsdfm-stories", tmp_path / "moved" / "stories")
    packed = file_sha256(MODELS / "tsdfm-stories" / "teacher.safetensors")
    for sha256, found in ((packed, tmp_path / "moved" / "stories"), ("another", None)):
        assert whereabouts(tmp_path / "gone" / "stories", tmp_path / "moved" / "compass", sha256) == found


def test_the_licence_of_what_a_model_descends_from_goes_before_its_bundles(tmp_path: Path) -> None:
    public = {"source": "org/public", "layout": "llama", "licence": "cc-by-nc-4.0"}
    members = {"student": {"descent": public}, "teacher": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "mine", "licence": "mit", "members": members}))
    for role, found in (("student", public), ("teacher", {"source": "mine", "licence": "mit"})):
        (tmp_path / f"{role}.safetensors").touch()
        assert descent_of(tmp_path / f"{role}.safetensors") == found
