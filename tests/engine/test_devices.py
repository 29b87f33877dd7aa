from pathlib import Path

import pytest
import torch

from tsdfm.engine import distributed
from tsdfm.engine.distributed import Processes, join, pick_device
from tsdfm.errors import UserError


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    for name, words in (("gpu", "unknown device"), ("meta", "not supported")):
        with pytest.raises(UserError, match=words):
            pick_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        pick_device("cuda")
    with join("auto") as world:
        assert world == Processes()


def test_a_gpu_that_does_not_start_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(distributed, "GPUS", tmp_path)
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="does not start"):
        pick_device("auto")
    assert pick_device("cpu").type == "cpu"
    for hidden in ("", "-1", "NoDevFiles", "-1,0"):  # on purpose
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert pick_device("auto").type == "cpu"
    for shown in ("0", "1,0", "GPU-12ab"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        with pytest.raises(UserError, match="does not start"):
            pick_device("auto")
    (tmp_path / "nvidia0").unlink()
    assert pick_device("auto").type == "cpu"
