"""The examples run, from another folder and with few steps, and say what they are for."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest

from tsdfm.samples.model import TextModel

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {  # and what each must print
    "train_on_a_folder": "The teacher",
    "distil": "16 passes",
    "guide": "guided: 2 passes",
    "infill": "way.json",
    "compare": "mdlm   16 passes: perplexity",
    "web_scale": "rows; the last batch begins with",
}


@pytest.fixture(autouse=True)
def few_steps_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TSDFM_EXAMPLE_STEPS", "2")
    sample = TextModel.sample
    monkeypatch.setattr(TextModel, "sample", lambda model, n, **given: sample(model, n=min(n, 4), **given))


def test_these_are_all() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["first_hour.ipynb"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short_and_say_how_to_make_them_smaller(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    assert "TSDFM_EXAMPLE_STEPS" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "web_scale":
        pytest.importorskip("datatrove")
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SCRIPTS[name] in capsys.readouterr().out


def test_the_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code cells, in order, in one namespace, as a kernel does; what a cell ends with can be shown."""
    notebook = json.loads((EXAMPLES / "first_hour.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)  # results go stale
    space: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), space)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space))
    assert [value._repr_html_()[:4] for value in shown if hasattr(value, "_repr_html_")] == ["<svg"]
    told = capsys.readouterr().out
    assert "8 network passes" in told
    assert "fs-dfm   16 passes" in told
