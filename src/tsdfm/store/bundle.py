"""Bundles: models made to be passed on. `tsdfm ship` writes one, every loader reads it, by its folder or by its name.

    FOLDER/manifest.json          what is in it, and the sha256 of each file
           card.md                what people should know before they use it
           tokenizer/             one for all
           student.safetensors    packed weights (see `packed`); no optimiser
           teacher.safetensors
           compass.safetensors

`FOLDER` means the student, or the compass where a compass is wanted; `FOLDER/teacher` means the teacher. A bundle that
lies in the package's own `ship/models` goes by its name: `tsdfm-stories`, `tsdfm-stories/teacher`. What exists on the
disk goes before a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.ranges import shown
from tsdfm.store.checkpoint import FOLDER as CHECKPOINTS
from tsdfm.store.checkpoint import GIVE, STATE, check_file, find_checkpoint, load_weights, read_state, read_tensors
from tsdfm.store.files import file_sha256, read_json, read_text
from tsdfm.store.kinds import BundleManifest
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest
from tsdfm.store.packed import has_differences, unpack
from tsdfm.store.schema import checked

MODELS = Path(__file__).parent.parent / "ship" / "models"
DEFAULT = "tsdfm-stories"
STAGE = "ship"
FORMAT = 2
READS = (1, 2)  # 1 had no coded weights
CARD = "card.md"
UNSAID = "Its maker has written nothing about its data, licence and limits."
FACTS = "## Facts\n\nWritten by `tsdfm ship`"  # where a card's facts begin, after its maker's words
ROLES = ("student", "teacher", "compass")
BASE = "teacher"  # the one from which the others may be stored as differences
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MEND = "copy the bundle again, or install tsdfm again if it came with it"


@dataclass(frozen=True)
class Bundle:
    """A folder of shipped models and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def roles(self) -> list[str]:
        """Which models it has: the student, and perhaps its teacher and its compass."""
        return [role for role in ROLES if role in self.manifest["members"]]

    @property
    def defaults(self) -> dict[str, Any]:
        """How its student is best sampled where the user says nothing: some of n, steps, temperature, jump."""
        found = self.manifest.get("defaults")
        return found if isinstance(found, dict) else {}

    @property
    def words(self) -> str:
        """What its maker says of it: its card without the facts; empty where there is none, or nothing was written."""
        path = self.folder / CARD
        said = read_text(path).partition(FACTS)[0].strip() if path.is_file() else ""
        return "" if said.endswith(UNSAID) else said

    def member(self, role: str) -> Member:
        """One of its models."""
        if role not in self.roles:
            raise UserError(f"{self.folder.resolve().name} has no {role!r}; it has: {', '.join(self.roles)}")
        return Member(self, role, self.manifest["members"][role])


@dataclass(frozen=True)
class Member:
    """One model of a bundle; `about` is what a run's manifest would say (its stage, its `model` or `compass`, …)."""

    bundle: Bundle
    role: str
    about: dict[str, Any]

    @property
    def file(self) -> Path:
        """Where its packed weights lie."""
        return self.bundle.folder / f"{self.role}.safetensors"

    @property
    def sha256(self) -> str:
        """Of the packed file: another packing of the same run is another model."""
        return str(self.about["sha256"])

    def weights(self) -> dict[str, Tensor]:
        """Float32 weights, from files whose sha256 is the manifest's: its own, and the teacher's if it needs that."""
        check_file(self.file, self.about, MEND)
        stored = read_tensors(self.file, MEND)
        base = self.bundle.member(BASE).weights() if self.role != BASE and has_differences(stored) else None
        try:
            return unpack(stored, base)
        except UserError as problem:
            raise UserError(f"{self.file}: {problem}") from None


@dataclass(frozen=True)
class FoundWeights:
    """Weights that a loader can use: where they lie, what made them, their sha256, and how to get them."""

    place: Path
    manifest: dict[str, Any]
    sha256: str
    weights: Callable[[], dict[str, Tensor]]


def find_weights(path: Path, role: str, *, which: str, choose: str) -> FoundWeights:
    """The weights that `path` means: of a run, a checkpoint, a bundle or a shipped name, `role` unless it names one."""
    member = find_member(path, role)
    if member is None:
        if not path.exists():
            raise UserError(f"no checkpoint or run at {path}{unshipped(path) or GIVE}")
        place = find_checkpoint(path, choose)
        files = read_state(place)["files"]
        sha256 = files.get(f"{which}.safetensors", files["model.safetensors"])["sha256"]
        return FoundWeights(place, read_manifest(place), sha256, lambda: load_weights(place, which))
    if which != "ema":
        raise UserError(f"{path} was shipped with its averaged weights alone: leave out the choice of weights")
    return FoundWeights(member.file, member.about, member.sha256, member.weights)


def find_member(path: str | Path, role: str) -> Member | None:
    """The model of a bundle that `path` means, `role` unless it names one; none if it means something else."""
    found = find_shipped(path)
    return None if found is None else found[0].member(found[1] or role)


def member_at(place: Path) -> Member | None:
    """The model of a bundle whose packed file lies at `place` (`FoundWeights.place`); none of a checkpoint."""
    return find_member(place.with_suffix(""), place.stem) if place.is_file() else None


def on_disk(path: Path, name: str, role: str | None = None) -> Path:
    """What input `name` of a training means on the disk, for its hash: a bundle's packed file, another path itself.

    A name that is one of a bundle's `ROLES` means that model of it, any other the student, unless `role` says which.
    """
    if name == "tokens":  # no model
        return path
    member = find_member(path, role or (name if name in ROLES else "student"))
    return path if member is None else member.file


def find_shipped(path: str | Path) -> tuple[Bundle, str | None] | None:
    """The bundle that `path` means and the model it names, if it does: FOLDER, FOLDER/teacher, NAME, NAME/teacher."""
    path = Path(path)
    if path.exists():
        return (read_bundle(path), None) if is_bundle(path) else None
    if path.name in ROLES and is_bundle(path.parent):
        return read_bundle(path.parent), path.name
    parts = path.parts
    if not (1 <= len(parts) <= 2 and NAME.fullmatch(parts[0]) and is_bundle(MODELS / parts[0])):
        return None
    return read_bundle(MODELS / parts[0]), parts[1] if len(parts) == 2 else None


def whereabouts(path: Path, run: Path, sha256: str | None = None) -> Path | None:
    """Where an input of a run is: where it was, or after a move beside the run under its name; none if it is gone.

    Of the two the one counts that has the input's `sha256`, where that is known: another model may have its name. What
    lies where the input was is taken for it all the same, as it may have been trained on.
    """
    places = [at for at in (path, run.parent / path.name) if at.resolve() != run.resolve()]  # no run is its own input
    there = [at for at in places if find_shipped(at) or (at / MANIFEST).is_file()]
    same = [at for at in there if sha256 is None or sha256 in hashes_of(at)]
    return next(iter(same), path if path in there else None)


def hashes_of(place: Path) -> set[str]:
    """What an input of a run may have for its hash: a run's manifest, or any of a bundle's packed files."""
    if (found := find_shipped(place)) is not None:
        return {str(about["sha256"]) for about in found[0].manifest["members"].values()}
    return {file_sha256(place / MANIFEST)}


def is_bundle(folder: Path) -> bool:
    """Did `tsdfm ship` make it? A run's folder is told by its checkpoints, without reading its manifest."""
    if (folder / CHECKPOINTS).exists() or (folder / STATE).exists() or not (folder / MANIFEST).is_file():
        return False
    try:
        return read_json(folder / MANIFEST).get("stage") == STAGE
    except UserError:  # another program's
        return False


def read_bundle(folder: str | Path) -> Bundle:
    """A bundle, checked to be one this version reads. Its weights are checked when they are read."""
    folder = Path(folder)
    manifest = read_json(folder / MANIFEST, MEND)
    if manifest.get("format") not in READS:
        known = " and ".join(map(str, READS))
        raise UserError(
            f"{folder} has format {shown(manifest.get('format'))}, this version reads {known}: update tsdfm"
        )
    return Bundle(folder, dict(checked(manifest, BundleManifest, folder / MANIFEST, MEND)))


def shipped_names() -> list[str]:
    """The models that came with this copy of tsdfm."""
    return sorted(place.name for place in MODELS.glob("*") if is_bundle(place)) if MODELS.is_dir() else []


def default_model() -> Path:
    """The model that is meant where none is named, as a path: `tsdfm-stories`, or the first that came with tsdfm."""
    names = shipped_names()
    if not names:
        raise UserError(
            "no model came with this copy of tsdfm: name a run folder or a bundle (`make demo` trains small models "
            "into runs/demo)"
        )
    return MODELS / (DEFAULT if DEFAULT in names else names[0])


def unshipped(path: Path) -> str:
    """What to add to the news that nothing is at `path`, if it might have been meant as a name."""
    if path.is_absolute() or len(path.parts) > 2 or not all(NAME.fullmatch(part) for part in path.parts):
        return ""
    names = shipped_names()
    return f", nor a shipped model of that name ({'shipped: ' + ', '.join(names) if names else 'none is shipped'})"
