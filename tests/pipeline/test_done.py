"""What counts as done already."""

import json
from pathlib import Path
from typing import Any

import pytest

from training import student_settings
from tsdfm.distil.settings import NavigateSettings, StudentSettings
from tsdfm.engine.settings import OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import method as method_named
from tsdfm.methods.fs_dfm import FSDFMSettings
from tsdfm.methods.ts_dfm import TSDFMSettings
from tsdfm.pipeline.done import is_finished
from tsdfm.settings import defaults, to_dict
from tsdfm.store.manifest import input_sha256


def settings(out: Path, **more: Any) -> StudentSettings:
    return student_settings(tokens=out, init_from=out, out=out, compass=out, policy="sequence", **more)


def test_a_run_from_before_a_setting_was_there_is_done(tmp_path: Path) -> None:
    """It had the default, which another value is not."""
    found = to_dict(settings(tmp_path))
    del found["optim"]["rule"], found["navigate"]["blocks"], found["record"]
    (tmp_path / "manifest.json").write_text(
        json.dumps({"stage": "x", "finished": True, "settings": found, "inputs": {}})
    )
    assert is_finished(settings(tmp_path))
    for other in ({"navigate": NavigateSettings(blocks=2)}, {"share": 0.5}):
        with pytest.raises(UserError, match="other settings"):
            is_finished(settings(tmp_path, **other))
    found["share"] = 0.25
    (tmp_path / "manifest.json").write_text(
        json.dumps({"stage": "x", "finished": True, "settings": found, "inputs": {}})
    )
    with pytest.raises(UserError, match="other settings"):
        is_finished(settings(tmp_path))


def test_what_differs_is_named(tmp_path: Path) -> None:
    """A student from when forward was the default is not taken for one of today's."""
    found = to_dict(settings(tmp_path, divergence="forward"))
    (tmp_path / "manifest.json").write_text(
        json.dumps({"stage": "x", "finished": True, "settings": found, "inputs": {}})
    )
    assert is_finished(settings(tmp_path, divergence="forward"))
    with pytest.raises(UserError, match="divergence was forward and is now reverse; use what it was"):
        is_finished(settings(tmp_path))
    with pytest.raises(UserError, match=r"navigate\.k was 5 and is now 3"):
        is_finished(settings(tmp_path, divergence="forward", navigate=NavigateSettings(k=3)))


def test_a_student_of_another_method_is_not_done(tmp_path: Path) -> None:
    """A run from before there were methods says by its policy which it is; settings of the other do not count."""
    found = {**to_dict(settings(tmp_path)), "policy": "blind"}
    model = {"schedule": "poly:1", "step_size": True}
    about = {"stage": "x", "finished": True, "settings": found, "inputs": {}, "model": model}
    (tmp_path / "manifest.json").write_text(json.dumps(about))
    blind = FSDFMSettings(tokens=tmp_path, init_from=tmp_path, out=tmp_path)
    assert is_finished(blind, "fs-dfm")
    with pytest.raises(UserError, match="a finished run of fs-dfm, and this is ts-dfm"):
        is_finished(settings(tmp_path), "ts-dfm")


def test_defaults_leave_out_what_has_none() -> None:
    made = defaults(TSDFMSettings)
    assert not {"tokens", "init_from", "out"} & made.keys()
    assert made["navigate"] == to_dict(NavigateSettings())
    assert made["optim"]["lr"] == 1e-5 != to_dict(OptimSettings())["lr"]  # the student's own


def test_a_teacher_that_is_what_a_student_starts_from_is_the_same_one(tmp_path: Path) -> None:
    """Its settings name none, its manifest does."""
    method, start, out = method_named("di4c"), tmp_path / "start", tmp_path / "out"
    for folder in (start, out):
        folder.mkdir()
    (start / "manifest.json").write_text(json.dumps({"stage": "x", "finished": True, "settings": {}, "inputs": {}}))
    made = method.settings(tokens=start, init_from=start, out=out)
    inputs = {key: {"path": str(start), "sha256": input_sha256(start)} for key in ("init_from", "tokens", "teacher")}
    model = {"schedule": "poly:1", "source": "mask", "method": "di4c"}
    about = {"stage": "x", "finished": True, "settings": to_dict(made), "inputs": inputs, "model": model}
    (out / "manifest.json").write_text(json.dumps(about))
    assert is_finished(made, "di4c")
    inputs["teacher"]["sha256"] = "0" * 64
    (out / "manifest.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="was made from other teacher"):
        is_finished(made, "di4c")
