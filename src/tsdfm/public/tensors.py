"""The tensors of a checkpoint that someone else wrote, by name, one at a time, without ever executing what a file says.

A safetensors file, several of them with an index, or a torch file whose pickle holds tensors and plain values alone
(`weights_only`). Torch files are mapped, not read: of a file with an optimiser in it only the chosen part is touched.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.store.files import file_sha256, read_json

TORCH = (".bin", ".pth", ".pt")
INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POINTER = b"version https://git-lfs"
AGAIN = "fetch it again"
WORD = re.compile(r"\w[\w.+-]*")  # what a card's front matter takes of someone's config: a licence, a method
FRONT = re.compile(r"---\n(.*?)^---$", re.DOTALL | re.MULTILINE)  # the front matter of a card
LICENCE = re.compile(r"""^license: +(["']?)(.*?)\1 *$""", re.MULTILINE)
ROOM = 1 << 22  # numbers that are looked at together: a look takes memory of its own


@dataclass(frozen=True)
class PublicTensors:
    """Names and shapes of all tensors, and a way to get each. `files` are what they come from.

    `beside` are the other parts of a torch file, which nobody reads: an optimiser, an average, another model.
    """

    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]
    _places: dict[str, tuple[Path, Any]] = field(repr=False)
    beside: tuple[str, ...] = ()

    def get(self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """A tensor [shape], on the device and in the dtype asked for; one that has NaN or infinities is refused."""
        file, place = self._places[name]
        try:
            tensor: Tensor = place if isinstance(place, Tensor) else place.get_tensor(name)
        except (SafetensorError, OSError) as problem:
            raise UserError(f"{file} is damaged ({problem}): {AGAIN}") from None
        if tensor.dtype not in NUMBERS or tensor.layout != torch.strided or tensor.is_meta:
            what = tensor.dtype if tensor.dtype not in NUMBERS else "meta" if tensor.is_meta else tensor.layout
            raise UserError(f"{name} of {file} has the type {what}: weights are dense floats of 16 to 64 bits")
        tensor = tensor.to(device=device, dtype=dtype or tensor.dtype)
        if not all(bool(torch.isfinite(part).all()) for part in torch.split(tensor.flatten(), ROOM)):
            raise UserError(f"{name} of {file} has numbers that are not finite: {AGAIN}")
        return tensor

    def sha256(self) -> dict[str, str]:
        """The hash of each file by its name."""
        return {file.name: file_sha256(file) for file in self.files}


def open_tensors(path: Path, part: str = "") -> PublicTensors:
    """The tensors of a file or folder. `part` chooses one of several models in one torch file."""
    files = weight_files(path)
    if part and all(file.suffix == ".safetensors" for file in files):
        raise UserError(f"{path} holds one model: --part chooses among those of a torch file, leave it out")
    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, tuple[Path, Any]] = {}
    beside: list[str] = []
    for file in files:
        with file.open("rb") as head:
            if head.read(len(POINTER)) == POINTER:
                raise UserError(f"{file} is not the file but git-lfs's pointer to it: `git lfs pull` fetches it")
        here, more = _torch_file(file, part) if file.suffix in TORCH else (_safetensors(file), [])
        beside += more
        twice = sorted(places.keys() & here.keys())
        if twice:
            raise UserError(f"{twice[0]} stands in two files of {path}: {AGAIN}")
        for name, place in here.items():
            places[name] = (file, place)
            shapes[name] = tuple(place.shape if isinstance(place, Tensor) else place.get_slice(name).get_shape())
    if not places:
        raise UserError(f"{path} holds no tensors")
    _check_index(path, places)
    return PublicTensors(tuple(files), shapes, places, tuple(beside))


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights: the one given, those an index names, or the only one there is."""
    if path.is_file():
        if path.suffix == ".ckpt":
            raise UserError(
                f"{path} is a Lightning checkpoint, whose pickle would have to be executed: take the model.safetensors "
                "that its authors publish instead"
            )
        if path.suffix not in (".safetensors", *TORCH):
            raise UserError(f"{path} is no checkpoint: give a .safetensors, .bin or .pth file, or a folder with one")
        return [path]
    if not path.is_dir():
        raise UserError(f"no file or folder at {path}")
    for name in INDEX:
        if (path / name).is_file():
            found = sorted({path / str(file) for file in _index(path / name).values()})
            missing = [file for file in found if not file.is_file()]
            if missing:
                raise UserError(f"{missing[0]} is missing, though {name} names it: {AGAIN}")
            return found
    for pattern in ("model.safetensors", "*.safetensors", "pytorch_model.bin", *(f"*{end}" for end in TORCH)):
        found = sorted(path.glob(pattern))
        if len(found) > 1:
            raise UserError(f"{path} holds several checkpoints ({', '.join(f.name for f in found[:4])}): give one file")
        if found:
            return found
    if ckpt := sorted(path.glob("*.ckpt")):
        return weight_files(ckpt[0])
    raise UserError(f"{path} holds no checkpoint: no .safetensors, .bin or .pth file")


def _index(path: Path) -> dict[str, str]:
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) and "/" not in file for file in found.values()):
        raise UserError(f"{path} is no index of shards: {AGAIN}")
    return found


def _check_index(path: Path, places: Mapping[str, Any]) -> None:
    """Hold the shards to what their index says."""
    for name in INDEX:
        if path.is_dir() and (path / name).is_file():
            differ = sorted(_index(path / name).keys() ^ places.keys())
            if differ:
                raise UserError(f"{path / name} and the shards disagree about {differ[0]}: {AGAIN}")


def _safetensors(path: Path) -> dict[str, Any]:
    try:
        file: Any = safe_open(path, framework="pt")
        return dict.fromkeys(file.keys(), file)
    except (SafetensorError, OSError) as problem:
        raise UserError(f"{path} is not a whole safetensors file ({problem}): {AGAIN}") from None


def _torch_file(path: Path, part: str) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of one model in a torch file, mapped into memory where the file allows it, and its other parts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is told below
            try:
                whole = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as problem:
                if "mmap" not in str(problem):
                    raise
                whole = torch.load(path, map_location="cpu", weights_only=True)  # a file of the old format
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds more than tensors, and reading it would execute what it says: take a safetensors file"
        ) from None
    except Exception as problem:  # whatever the bytes lead torch's reader to
        first = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:120]
        raise UserError(f"{path} is no whole torch file ({first}): {AGAIN}") from None
    return _tensors_in(whole, path, part)


def _tensors_in(whole: Any, path: Path, part: str) -> tuple[dict[str, Tensor], list[str]]:
    if not isinstance(whole, Mapping):
        raise UserError(f"{path} holds no named tensors")
    models = {str(name): inner for name, inner in whole.items() if _is_model(inner)}
    if part:
        if part not in models:
            raise UserError(f"{path} has no part {part!r}; it has: {', '.join(sorted(models)) or 'none'}")
    elif _is_model(whole):
        return dict(whole), []
    elif len(models) != 1:
        several = ", ".join(sorted(models))
        raise UserError(
            f"{path} holds several models ({several}): choose one with --part" if models else f"{path} holds no model"
        )
    taken = part or next(iter(models))
    return dict(models[taken]), [str(name) for name in whole if name != taken]


def _is_model(value: Any) -> bool:
    """Names of tensors, and nothing else."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())
    )


def read_config(path: Path) -> dict[str, Any]:
    """The config.json beside the weights; empty where there is none."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return {}
    return read_json(file, AGAIN)


def licence_of(said: Mapping[str, Any]) -> str | None:
    """The licence that a config (`license`) or a manifest of ours (`licence`) names; none where it is no such word."""
    found = said.get("license", said.get("licence"))
    return found if isinstance(found, str) and WORD.fullmatch(found) else None


def licence_beside(path: Path) -> str | None:
    """The licence of the weights at `path`: as the front matter of the card beside them says, or else the config."""
    card = (path if path.is_dir() else path.parent) / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    front = FRONT.match(text)
    said = [found[2] for found in LICENCE.finditer(front[1])] if front else []
    return licence_of({"license": said[0]} if len(said) == 1 else {}) or licence_of(read_config(path))
