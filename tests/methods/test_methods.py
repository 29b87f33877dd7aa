"""What holds for every method, and how one is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tsdfm
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.methods import jump_for, method, method_of, names, student_method
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.settings import defaults

SHAPE = Shape(width=16, depth=1, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)
HEAVY = ("torch", "numpy", "rich")


def spec(**words: object) -> VelocitySpec:
    made = {"shape": SHAPE, "vocab": 7, "source": "mask", "schedule": "poly:1", "length": 4, "anchor": 0}
    return VelocitySpec(**{**made, "tokenizer": "abc", **words})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", names())
def test_each_says_what_it_is(name: str) -> None:
    found = method(name)
    assert found.name == name
    assert found.title
    assert found.help
    assert {"loop", "optim", "resume"} <= set(defaults(found.settings))
    flow = spec(**found.words(), **({} if "mask" in found.sources else {"source": "uniform"}))
    assert jump_for("auto", flow).final_pass in (True, False)
    bound = found.bound()
    assert bound is None or bound.label


def test_the_first_four_are_there() -> None:
    assert {"dfm", "fs-dfm", "ts-dfm", "mdlm"} <= set(names())
    assert "remdm" not in names()
    assert [method(name).many_step for name in ("dfm", "fs-dfm", "ts-dfm", "mdlm")] == [True, False, False, True]
    assert method("ts-dfm").needs == ("init_from", "compass")


def test_loading_all_of_them_is_cheap() -> None:
    """Settings and help need no torch: a method's file imports it inside its functions."""
    code = (
        "import sys; from tsdfm.methods import method, names; [method(n).settings for n in names()];"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_not_there() -> None:
    with pytest.raises(UserError, match="did you mean 'ts-dfm'"):
        method("tsdfm")
    with pytest.raises(UserError, match="unknown jump 'leap'"):
        jump_for("leap", spec())


def test_the_method_of_a_manifest() -> None:
    """As it is recorded; of runs that did not record it, by what their settings say of midpoints."""
    model = spec(step_size=True).plain()
    old = {name: value for name, value in model.items() if name not in ("method", "jump", "time", "logits")}

    def found(manifest: dict[str, object]) -> str | None:
        made = method_of(manifest)
        return None if made is None else made.name

    assert found({"model": {**model, "method": "mdlm"}}) == "mdlm"
    assert found({"model": old, "settings": {"policy": "blind"}}) == "fs-dfm"
    assert found({"model": old, "settings": {"policy": "sequence"}}) == "ts-dfm"
    assert found({"model": {**old, "step_size": False}}) == "dfm"
    assert found({"compass": {}}) is None
    assert spec(step_size=True).usual_jump() == "cumulative"
    assert spec().usual_jump() == "euler"


def test_what_student_means() -> None:
    assert student_method({"policy": "blind", "compass": "x", "share": 0.5}) == ("fs-dfm", {"share": 0.5})
    name, values = student_method({"policy": "token", "compass": "x"})
    assert (name, values) == ("ts-dfm", {"policy": "token", "compass": "x"})


def test_the_list_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", said, re.MULTILINE) for name in names())
    assert main(["train", "nothing"]) == 2
    refusal = capsys.readouterr().err
    assert "unknown method 'nothing'" in refusal
    assert "mdlm" in refusal
    assert "hazard" not in refusal  # a way to sample, which trains nothing


def test_no_other_room_names_a_neighbour() -> None:
    """MDLM is one file: the proof of the seam."""
    home = Path(tsdfm.__file__).parent
    others = [
        path for path in home.rglob("*.py") if not {"methods", "public"} & set(path.parts)
    ]  # public: by its layout
    code = [path.name for path in others if re.search(r"""["']mdlm["']|methods\.mdlm""", path.read_text())]
    assert code == []
    lines = (home / "methods" / "mdlm.py").read_text().splitlines()
    assert len(lines) <= 150
