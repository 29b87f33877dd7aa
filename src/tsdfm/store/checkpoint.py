"""Checkpoints on disk: safetensors and JSON, no pickle, complete or not there at all.

    run/checkpoints/step-00001000/model.safetensors   the weights
                                  ema.safetensors     their moving average, if the run keeps one
                                  optim.safetensors   AdamW's moments and counts
                                  state.json          step, tokens, best, and the sha256 of each file
                                  manifest.json       what made it
    run/checkpoints/best.json                         names the step with the best evaluation

A checkpoint is written into a hidden folder, flushed to the disk and then renamed, so that a kill at any moment leaves
the last good one; hidden leftovers are swept away by the next save. Deleting goes the same way backwards.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.ranges import shown
from tsdfm.store.files import disk, file_sha256, read_json, sync_file, sync_folder, write_json
from tsdfm.store.kinds import Best, State
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.schema import checked, read_record

FORMAT = 1
FOLDER = "checkpoints"
STATE = "state.json"
BEST = "best.json"
HIDDEN = ".tmp-"
CHOICES = ("newest", "best")
GIVE = ": give a run's folder, a checkpoint, a bundle or a shipped name"


class Store:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.folder = run / FOLDER
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a complete checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", p.name) for p in self.folder.iterdir() if (p / STATE).is_file())
        return sorted(int(m[1]) for m in found if m)

    def at(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / f"step-{step:08d}"

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        steps = self.steps()
        return self.at(steps[-1]) if steps else None

    def save(
        self,
        step: int,
        parts: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        manifest: Mapping[str, Any],
    ) -> Path:
        """Write the tensors of each part (`model`, `ema`, `optim`) with their state; the folder appears complete."""
        final, temp = self.at(step), self.folder / f"{HIDDEN}{step:08d}-{os.getpid()}"
        with writing(final):
            self.sweep()
            temp.mkdir(parents=True)
            try:
                files = {}
                for name, tensors in parts.items():
                    path = temp / f"{name}.safetensors"
                    files[path.name] = write_tensors(path, tensors)
                write_json(temp / MANIFEST, {**manifest, "step": step, "files": files})
                write_json(temp / STATE, {"format": FORMAT, "step": step, "files": files, **state})
                if final.exists():  # without its state, so not a checkpoint: someone took it apart
                    self._discard(final)
                temp.rename(final)
            except BaseException:
                shutil.rmtree(temp, ignore_errors=True)
                raise
            sync_folder(self.folder)
        return final

    def mark_best(self, best: Mapping[str, Any]) -> None:
        """Name the best step for whoever wants it: {"step", "metric", "value"}."""
        write_json(self.folder / BEST, best)

    def prune(self, best: int | None) -> None:
        """Delete all but the newest `keep` checkpoints and the best one."""
        steps = self.steps()
        for step in steps[: -self.keep]:
            if step != best:
                self._discard(self.at(step))

    def _discard(self, folder: Path) -> None:
        hidden = self.folder / f"{HIDDEN}old-{folder.name}-{os.getpid()}"
        folder.rename(hidden)
        shutil.rmtree(hidden)

    def sweep(self) -> None:
        """Delete what a killed process left half-written or half-deleted."""
        if self.folder.is_dir():
            for left in self.folder.glob(f"{HIDDEN}*"):
                shutil.rmtree(left, ignore_errors=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file to the disk; returns its sha256 and bytes."""
    path.touch()
    mode = path.stat().st_mode  # what the user's umask says; safetensors would make it private
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)
    sync_file(path)
    return {"sha256": file_sha256(path), "bytes": path.stat().st_size}


def find_checkpoint(path: str | Path, choose: str = "newest") -> Path:
    """The checkpoint folder that `path` means: itself, or the `newest` or `best` one of a run folder."""
    path = Path(path)
    if choose not in CHOICES:
        raise UserError(f"a run's checkpoint is the newest or the best, not {choose!r}")
    if (path / STATE).is_file():
        return path
    if not path.is_dir():
        raise UserError(f"no checkpoint or run at {path}{GIVE}")
    store = Store(path)
    if choose == "best" and (store.folder / BEST).is_file():
        step = read_record(store.folder / BEST, Best, "delete it to use the newest checkpoint")["step"]
        if (store.at(step) / STATE).is_file():
            return store.at(step)
    newest = store.newest()
    if newest is None:
        raise UserError(f"{path} holds no complete checkpoint: train first, or give another folder")
    return newest


def has_checkpoint(path: str | Path) -> bool:
    """Does `path` mean a checkpoint, or a run that has come as far as one?"""
    return (Path(path) / STATE).is_file() or bool(Store(Path(path)).steps())


def read_state(checkpoint: str | Path, kind: Any = State) -> dict[str, Any]:
    """The state of a checkpoint, checked to be one this version reads; `RunState` is what a run can go on from."""
    path = Path(checkpoint) / STATE
    state = read_json(path, mend(path.parent))
    if state.get("format") != FORMAT:
        raise UserError(f"{path} has format {shown(state.get('format'))}, this version reads {FORMAT}")
    return dict(checked(state, kind, path, mend(path.parent)))


def verify(checkpoint: Path, name: str) -> Path:
    """The path of one of a checkpoint's files, after its sha256 was compared with the one written down."""
    known = read_state(checkpoint)["files"].get(name)
    if known is None:
        raise UserError(f"{checkpoint} has no {name}")
    return check_file(checkpoint / name, known, mend(checkpoint))


def check_file(path: Path, known: Mapping[str, Any], mend: str) -> Path:
    """`path`, if its size and sha256 are the `known` ones (`bytes`, `sha256`); `mend` says what to do if not."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {mend}")
    size = path.stat().st_size
    if size != known["bytes"]:
        raise UserError(f"{path} is damaged ({size} bytes instead of {known['bytes']}): {mend}")
    if file_sha256(path) != known["sha256"]:
        raise UserError(f"{path} was changed after it was written (sha256 differs): {mend}")
    return path


def mend(checkpoint: Path) -> str:
    """What to do about a bad checkpoint."""
    return f"restore it from a copy, or delete {checkpoint.name} to use the one before"


def load_weights(path: str | Path, which: str = "ema", choose: str = "newest") -> dict[str, Tensor]:
    """Whole CPU tensors by name, from a checkpoint or a run; `ema` is the plain weights where a run kept no average."""
    if which not in ("ema", "model"):
        raise UserError(f"weights are 'ema' or 'model', not {which!r}")
    checkpoint = find_checkpoint(path, choose)
    if which == "ema" and "ema.safetensors" not in read_state(checkpoint)["files"]:
        which = "model"
    file = verify(checkpoint, f"{which}.safetensors")
    found = read_tensors(file, mend(checkpoint))
    if wrong := next((name for name, tensor in found.items() if not tensor.is_floating_point()), None):
        raise UserError(f"{file} holds whole numbers for the weights {wrong}: {mend(checkpoint)}")
    return found


def read_tensors(file: Path, mend: str) -> dict[str, Tensor]:
    """All tensors of a file by name, on the CPU; `mend` says what to do if it is no such file."""
    try:
        return load_file(file)
    except SafetensorError as problem:
        raise UserError(f"{file} is not a safetensors file ({problem}): {mend}") from None


class Tensors:
    """The tensors of one verified file, read one at a time."""

    def __init__(self, checkpoint: Path, part: str) -> None:
        self.path = verify(checkpoint, f"{part}.safetensors")
        try:
            self._file: Any = safe_open(self.path, framework="pt")
        except SafetensorError as problem:
            raise UserError(f"{self.path} is not a safetensors file ({problem}): {mend(checkpoint)}") from None

    def expect(self, wanted: Mapping[str, Tensor]) -> None:
        """Hold the file to exactly these names and shapes, or say what differs first."""
        names = set(self._file.keys())
        for name in sorted(names ^ set(wanted)):
            where = "the checkpoint has" if name in names else "the model now has"
            raise UserError(f"cannot resume: {where} {name!r} and the other has not; use the settings it was made with")
        for name, tensor in wanted.items():
            shape = list(self._file.get_slice(name).get_shape())
            if shape != list(tensor.shape):
                raise UserError(
                    f"cannot resume: {name} has shape {shape} in the checkpoint and {list(tensor.shape)} in the model; "
                    "use the model settings and vocabulary it was made with"
                )

    def __call__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """`disk`, for safetensors too: it reports the system's errors as its own."""
    with disk(path):
        try:
            yield
        except SafetensorError as problem:
            code = re.search(r"os error (\d+)", str(problem))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from problem
