import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_training

from processes import script
from tsdfm.engine.distributed import Processes
from tsdfm.engine.log import read_metrics
from tsdfm.errors import UserError
from tsdfm.store import checkpoint
from tsdfm.store.checkpoint import Store, find_checkpoint, load_weights, read_state, verify

PARTS = {
    "model": {"w": torch.arange(6.0).view(2, 3)},
    "ema": {"w": torch.ones(2, 3)},
    "optim": {"w.step": torch.tensor(3.0)},
}


def save(store: Store, *steps: int, best: int | None = None) -> None:
    for step in steps:
        store.save(step, PARTS, {"tokens": 0}, {"stage": "toy"})
        store.prune(best)


def test_saved_weights_come_back(tmp_path: Path) -> None:
    save(Store(tmp_path), 5)
    for path in (tmp_path, tmp_path / "checkpoints" / "step-00000005"):
        assert torch.equal(load_weights(path)["w"], PARTS["ema"]["w"])
        assert torch.equal(load_weights(path, "model")["w"], PARTS["model"]["w"])
    manifest = json.loads((find_checkpoint(tmp_path) / "manifest.json").read_text())
    assert manifest["files"] == read_state(find_checkpoint(tmp_path))["files"]
    assert manifest["stage"] == "toy"


def test_a_run_without_average_gives_its_weights(tmp_path: Path) -> None:
    Store(tmp_path).save(1, {"model": PARTS["model"]}, {}, {})
    assert torch.equal(load_weights(tmp_path, "ema")["w"], PARTS["model"]["w"])


def test_tied_weights_are_saved_twice_not_refused(tmp_path: Path) -> None:
    from tsdfm.engine.gather import gather

    w = torch.randn(2, 2)
    Store(tmp_path).save(1, {"model": gather({"a": w, "b": w, "c": w.t()}, Processes())}, {}, {})
    found = load_weights(tmp_path, "model")
    assert torch.equal(found["a"], w)
    assert torch.equal(found["b"], w)
    assert torch.equal(found["c"], w.t())


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    save(store, 1, 2, 3, 4, 5, best=2)
    assert store.steps() == [2, 4, 5]
    store.mark_best({"step": 2, "metric": "elbo", "value": 1.0})
    assert find_checkpoint(tmp_path, "best").name == "step-00000002"
    assert find_checkpoint(tmp_path).name == "step-00000005"
    save(store, 6, best=6)
    assert store.steps() == [5, 6]
    assert find_checkpoint(tmp_path, "best").name == "step-00000006"  # the named one is gone


@pytest.mark.parametrize("name", ["model.safetensors", "ema.safetensors"])
def test_truncated_changed_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    save(Store(tmp_path), 1)
    file, which = find_checkpoint(tmp_path) / name, name.split(".")[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=rf"{name} is damaged \({len(whole) - 1} bytes"):
        load_weights(tmp_path, which)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=f"{name} was changed"):
        load_weights(tmp_path, which)
    file.unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load_weights(tmp_path, which)


def test_a_damaged_or_foreign_state_is_named(tmp_path: Path) -> None:
    save(Store(tmp_path), 1)
    state = find_checkpoint(tmp_path) / "state.json"
    whole = state.read_text()
    state.write_text(whole[:20])
    with pytest.raises(UserError, match=r"state\.json is damaged"):
        load_weights(tmp_path)
    state.write_text(whole.replace('"format": 1', '"format": 99'))
    with pytest.raises(UserError, match="format 99"):
        load_weights(tmp_path)


def test_a_file_with_a_forged_hash_still_cannot_do_harm(tmp_path: Path) -> None:
    save(Store(tmp_path), 1)
    folder = find_checkpoint(tmp_path)
    bad = b"cos\nsystem\n(S'touch owned'\ntR."
    (folder / "ema.safetensors").write_bytes(bad)
    state = read_state(folder)
    state["files"]["ema.safetensors"] = {
        "sha256": checkpoint.file_sha256(folder / "ema.safetensors"),
        "bytes": len(bad),
    }
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="not a safetensors file"):
        load_weights(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint or run"):
        load_weights(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no complete checkpoint"):
        load_weights(tmp_path)


SMALL_DISK = """
import sys, pathlib, torch
from tsdfm.store.checkpoint import Store, load_weights
from tsdfm.errors import UserError
run = pathlib.Path(sys.argv[1])
Store(run).save(1, {"model": {"w": torch.ones(9)}}, {}, {})
try:
    Store(run).save(2, {"model": {"w": torch.zeros(1 << 18)}}, {}, {})
except UserError as problem:
    print(problem, [p.name for p in (run / "checkpoints").iterdir()], load_weights(run)["w"].sum().item())
"""


def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=256k none "{tmp_path}" && "$0" -c "$1" "{tmp_path}"'
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    call = ["unshare", "-m", "sh", "-c", mount, sys.executable, SMALL_DISK]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert "no disk space left" in done.stdout, done
    assert done.stdout.endswith("['step-00000001'] 9.0\n")


def test_a_full_disk_as_safetensors_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise checkpoint.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match="no disk space left"):
        save(Store(tmp_path), 2)
    assert list((tmp_path / "checkpoints").iterdir()) == []


POINTS = [("file", 2, []), ("file", 5, [2]), ("state", 4, [2]), ("folder", 2, [2, 4]), ("delete", 1, [4])]


@pytest.mark.parametrize(("point", "count", "left"), POINTS)
def test_kill_9_while_saving_leaves_the_last_good_one_and_resume_is_bitwise(
    tmp_path: Path, point: str, count: int, left: list[int]
) -> None:
    """Saves come at steps 2, 4 and 6; the process is killed with half a file, before state.json, before the folder is
    synced, or in the middle of deleting an old one. What is left must load, and resuming must end as if unbroken."""
    loop = {"save_every": 2, "keep": 1, "eval_every": 0}
    given: dict[str, Any] = {"loop": loop, "net": {"dropout": 0.2}}
    job = json.dumps([{"out": str(tmp_path / "killed"), "die": [point, count], **given}])
    child = script(toy_training.__file__, job)
    assert child.wait() == -9, child.said()
    store = Store(tmp_path / "killed")
    assert store.steps() == left
    for step in left:
        for name in read_state(store.at(step))["files"]:
            verify(store.at(step), name)
    resumed = toy_training.train(tmp_path / "killed", Processes(), resume=True, **given)
    unbroken = toy_training.train(tmp_path / "unbroken", Processes(), **given)
    assert same_tensors(resumed, unbroken)
    assert not list((tmp_path / "killed" / "checkpoints").glob(".tmp-*"))
    assert losses(tmp_path / "killed") == losses(tmp_path / "unbroken")


def same_tensors(a: Path, b: Path) -> bool:
    return all((a / n).read_bytes() == (b / n).read_bytes() for n in read_state(a)["files"])


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(run, "train")]
