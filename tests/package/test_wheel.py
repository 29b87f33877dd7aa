"""The wheel as a user gets it: built, installed into an environment of its own, used from a folder of one's own.

Nothing is downloaded. What tsdfm needs is borrowed from the environment of the tests; tsdfm itself is not.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import tsdfm

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
MOST = 35e6  # bytes


def call(*words: str | Path, cwd: Path) -> str:
    """What a command that must succeed prints on stdout."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        importlib.metadata.version("hatchling")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("hatchling, of the extra dev, is not installed")
    out = tmp_path_factory.mktemp("wheel")
    call(*PIP, "wheel", ROOT, "--no-deps", "--no-index", "--no-build-isolation", "-w", out, cwd=out)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has the wheel, and sees the packages of this one except tsdfm."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    call(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    own = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # A path that comes by a .pth file is searched, and the .pth files in it are not read: an editable tsdfm stays out.
    (own / "borrowed.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return home


def test_it_holds_the_models_the_recipes_and_the_mark_of_types_and_is_small(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    here = ROOT / "src" / "tsdfm"
    kinds = ("*.py", "*.toml", "*.safetensors", "*.json", "*.md", "*.html", "*.css", "*.js", "py.typed")
    wanted = {f"tsdfm/{path.relative_to(here).as_posix()}" for kind in kinds for path in here.rglob(kind)}
    assert {"tsdfm/py.typed", "tsdfm/recipes/tiny_cpu.toml"} <= wanted
    assert wanted <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks", "examples"))]
    assert wheel.stat().st_size < MOST


def test_its_metadata_says_who_what_and_for_whom(home: Path) -> None:
    (place,) = home.glob("lib/python*/site-packages")
    (found,) = importlib.metadata.distributions(name="tsdfm", path=[str(place)])
    assert found.version == tsdfm.__version__
    for name in ("Summary", "Author", "Keywords", "License-Expression", "Description", "Requires-Python"):
        assert found.metadata[name], name
    assert "Typing :: Typed" in (found.metadata.get_all("Classifier") or [])
    extras = found.metadata.get_all("Provides-Extra") or []
    assert {"hub", "judges", "parquet", "serve", "tensorboard", "wandb", "zstd"} <= set(extras)


def test_it_writes_and_trains_from_any_folder(home: Path, tmp_path: Path) -> None:
    tool = home / "bin" / "tsdfm"
    place = call(home / "bin" / "python", "-c", "import tsdfm; print(tsdfm.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(home)
    assert call(tool, "--version", cwd=tmp_path) == f"tsdfm {tsdfm.__version__}\n"
    assert len(call(tool, "sample", "--n", "1", "--steps", "2", cwd=tmp_path)) > 200
    call(tool, "corpus", "--name", "world:small", "--limit", "60", "--valid", "0.1", "--out", "corpus", cwd=tmp_path)
    call(tool, "tokens", "--corpus", "corpus", "--out", "tokens", "--tokenizer", "byte", "--length", "32", cwd=tmp_path)
    small = "--net.width 32 --net.depth 1 --net.heads 2 --loop.steps 2 --loop.batch 4 --eval-rows 4 --eval-times 2"
    call(tool, "train", "dfm", "--tokens", "tokens", "--out", "run", *small.split(), cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "run", "tokens"]
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "ema.safetensors").is_file()
