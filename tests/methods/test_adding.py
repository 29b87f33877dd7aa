"""The method that `docs/adding-a-method.md` adds, as the page has it: trained, resumed, sampled and played."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import tsdfm
import tsdfm.methods
from tsdfm.cli import main
from tsdfm.flow import Mask, Polynomial, RowNoise

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of methods besides the package's own."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "maskgit.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(tsdfm.methods, "__path__", [*tsdfm.methods.__path__, str(folder)])
    return folder


def test_the_page_as_written(added: Path, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, way = tmp_path / "run", tmp_path / "way.json"
    words = ["train", "maskgit", "--tokens", str(tokens), "--out", str(run), "--net.preset", "tiny", "--eval-rows", "8"]
    words += ["--loop.batch", "8", "--eval-times", "2", "--loop.device", "cpu"]
    assert main([*words, "--loop.steps", "3"]) == 0
    assert main([*words, "--loop.steps", "6", "--resume"]) == 0
    assert main(["sample", str(run), "--steps", "5", "--n", "2", "--save-trajectory", str(way)]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    made = tsdfm.load(run, "cpu").sample(n=2, steps=5, seed=0)
    assert made.nfe == 5
    assert int(made.tokens.max()) < tsdfm.load(run, "cpu").velocity.spec.vocab  # no [MASK] is left


def test_its_jump_reveals_the_surest(added: Path) -> None:
    jump = tsdfm.methods.method("maskgit").jumps()["confidence"](Polynomial(1.0), Mask(3))
    x_t = torch.tensor([[3, 3, 0, 3]])
    sharp = torch.tensor([[[9.0, 0, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 20.0]]])
    half = torch.tensor([0.5])
    moved = jump(x_t, sharp, torch.zeros(1), half, RowNoise(0, torch.arange(1)))
    assert moved.tolist() == [[0, 3, 0, 2]]  # two of three masks, and what was there stays
    assert 3 not in jump(moved, sharp, half, half, RowNoise(0, torch.arange(1)))[0].tolist()
