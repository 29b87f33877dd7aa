import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "nn")]


@pytest.fixture(scope="session")
def shipping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a teacher, a student and a compass, and bundles of them: `coded`, `int8`, `bf16`. Not to be changed."""
    from ship_parts import make_runs, ship

    home = make_runs(tmp_path_factory.mktemp("shipping"))
    for weights in ("coded", "int8", "bf16"):
        ship(home, home / weights, "--weights", weights)
    return home


@pytest.fixture
def models(shipping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that came with one model, tsdfm-stories, and a user in an empty folder."""
    import shutil

    from tsdfm.store import bundle

    folder, here = tmp_path / "models", tmp_path / "here"
    shutil.copytree(shipping / "int8", folder / "tsdfm-stories")
    here.mkdir()
    monkeypatch.setattr(bundle, "MODELS", folder)
    monkeypatch.chdir(here)
    return folder
