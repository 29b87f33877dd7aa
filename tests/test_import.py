"""`import tsdfm` costs nothing: no torch, no numpy, no extra until something is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "rich")
EXTRAS = ("datasets", "huggingface_hub", "pyarrow", "zstandard", "tensorboard", "pandas", "triton", "hypothesis")


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
    assert {name for name in modules if name.startswith("tsdfm")} == {"tsdfm", "tsdfm.errors"}


@pytest.mark.parametrize("room", ["tsdfm.settings", "tsdfm.corpus.world", "tsdfm.corpus.story_judge"])
def test_what_needs_no_torch_imports_none(room: str) -> None:
    assert not tops(modules_after(f"import {room}")) & {"torch", *EXTRAS}


def test_load_is_lazy_and_needs_no_extra() -> None:
    modules = modules_after("import tsdfm; tsdfm.load; import tsdfm.teacher.run")
    assert "torch" in modules
    assert "tsdfm.samples.model" in modules
    assert not tops(modules) & {"datasets", "huggingface_hub", "pyarrow", "zstandard", "tensorboard"}


def test_names() -> None:
    import tsdfm

    assert all(hasattr(tsdfm, name) for name in tsdfm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        _ = tsdfm.lood
