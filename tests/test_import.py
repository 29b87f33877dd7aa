"""`import tsdfm` and every `--help` cost nothing: no torch, no numpy, no extra until something is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tsdfm

HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "rich", "transformers")
EXTRAS = (
    "datasets",
    "huggingface_hub",
    "pyarrow",
    "zstandard",
    "tensorboard",
    "wandb",
    "pandas",
    "triton",
    "hypothesis",
    "fastapi",
    "uvicorn",
    "prometheus_client",
)


def modules_after(code: str) -> set[str]:
    """The modules of a fresh Python that ran `code`."""
    shown = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_is_light() -> None:
    modules = modules_after("import tsdfm; tsdfm.__version__; tsdfm.UserError")
    assert not tops(modules) & {*HEAVY, *EXTRAS}
    assert {name for name in modules if name.startswith("tsdfm")} == {"tsdfm", "tsdfm.errors", "tsdfm.lazy"}


@pytest.mark.parametrize("room", ["tsdfm.settings", "tsdfm.corpus.world", "tsdfm.corpus.story_judge"])
def test_what_needs_no_torch_imports_none(room: str) -> None:
    assert not tops(modules_after(f"import {room}")) & {"torch", *EXTRAS}


def test_writing_a_text_loads_no_compiler() -> None:
    modules = modules_after("import tsdfm; tsdfm.load('tsdfm-stories', 'cpu').sample(n=1, steps=1, seed=0)")
    assert "torch.nn" in modules
    assert not {name for name in modules if name.startswith(("torch._dynamo", "sympy"))}


HELP = """
import contextlib, io
from tsdfm.cli import VERBS, main
from tsdfm.methods import names
for verb in ["", *VERBS, *(f"train {name}" for name in names())]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
        main([*verb.split(), "--help"])
    found = sorted({name.partition(".")[0] for name in sys.modules} & set(HEAVY))
    assert told.getvalue().startswith(f"usage: tsdfm {verb}"), told.getvalue()
    assert not found, f"tsdfm {verb} --help loads {found}"
"""


def test_help_loads_nothing_heavy() -> None:
    """It is what makes `tsdfm sample --help` answer in a tenth of a second: the settings alone are read."""
    modules = modules_after(f"HEAVY = {(*HEAVY, *EXTRAS)!r}\n{HELP}")
    assert {"tsdfm.cli", "tsdfm.samples.settings", "tsdfm.pipeline.settings", "tsdfm.doctor.settings"} <= modules


def test_settings_load_nothing_heavy() -> None:
    """The settings of every room, those of no verb too."""
    home = Path(tsdfm.__file__).parent
    names = [".".join(("tsdfm", *path.relative_to(home).with_suffix("").parts)) for path in home.rglob("settings.py")]
    assert "tsdfm.nn.settings" in names
    assert not tops(modules_after(f"import {', '.join(names)}")) & {*HEAVY, *EXTRAS}


def test_load_is_lazy_and_needs_no_extra() -> None:
    modules = modules_after("import tsdfm; tsdfm.load; import tsdfm.teacher.run")
    assert "torch" in modules
    assert "torch._dynamo" not in modules  # the compiler: half of what a start would cost, and loaded by what compiles
    assert "torch.distributed.fsdp" not in modules  # a second more, and loaded by what shards
    assert "tsdfm.samples.model" in modules
    assert not tops(modules) & {"datasets", "huggingface_hub", "pyarrow", "zstandard", "tensorboard"}


def test_names() -> None:
    assert all(hasattr(tsdfm, name) for name in tsdfm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        _ = tsdfm.lood


@pytest.mark.parametrize("room", ["tokens", "compass", "judges", "nn"])
def test_names_of_rooms(room: str) -> None:
    package = importlib.import_module(f"tsdfm.{room}")
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match=f"module 'tsdfm.{room}' has no attribute 'lood'"):
        _ = package.lood
