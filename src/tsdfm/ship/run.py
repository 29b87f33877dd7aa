"""`tsdfm ship`: pack a student with its teacher and compass into one folder to pass on; `tsdfm card`: read its card."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.compass.model import Compass, load_compass
from tsdfm.errors import UserError
from tsdfm.flow.solver import steps_of
from tsdfm.methods import jump_for
from tsdfm.nn.ddit import parameters
from tsdfm.nn.velocity import Velocity, load_velocity, run_folder
from tsdfm.public.card import check_licence
from tsdfm.public.model import is_public
from tsdfm.samples.model import TextModel, load
from tsdfm.settings import to_dict
from tsdfm.ship.card import card_text
from tsdfm.ship.check import energy_change, moments_of, prediction_change, weight_change
from tsdfm.ship.fit import fit
from tsdfm.ship.settings import CardSettings, ShipSettings
from tsdfm.store.bundle import (
    CARD,
    FORMAT,
    MEND,
    NAME,
    ROLES,
    STAGE,
    default_model,
    find_shipped,
    is_bundle,
    member_at,
    unshipped,
)
from tsdfm.store.checkpoint import read_state, write_tensors
from tsdfm.store.files import read_text, sync_file, write_json
from tsdfm.store.folder import whole
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import descent_of, read_manifest, versions
from tsdfm.tokens.tokenizer import FILE as TOKENIZER

FACTS = 40_000  # bytes for the manifest and for what is added to the card
OF_PACKING = ("packed_from", "weights_error", "sha256", "bytes", "change")


@dataclass(frozen=True)
class Originals:
    """The models as they were trained."""

    student: TextModel
    teacher: Velocity | None
    compass: Compass | None

    def members(self) -> dict[str, Velocity | Compass]:
        """Those there are, by role."""
        found = {"student": self.student.velocity, "teacher": self.teacher, "compass": self.compass}
        return {role: model for role, model in found.items() if model is not None}


def run(settings: ShipSettings) -> Path:
    """Write the bundle, say how large it is, and return its folder."""
    out = settings.out.resolve()
    if not NAME.fullmatch(settings.name):
        raise UserError(f"a bundle's name has letters, digits, dots and dashes, not {settings.name!r}")
    if out.exists() and not is_bundle(out) and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} holds something else than a bundle: choose another --out")
    if more := foreign(out):
        raise UserError(f"{out} also holds {more[0]}, which is no part of a bundle: move it, or choose another --out")
    check_licence(settings.licence)
    given = read_card(settings.card)
    originals = read_originals(settings)
    own = settings.defaults  # which must be such that the student can be sampled by them
    steps_of(jump_for(own.jump, originals.student.velocity.spec), own.steps)
    with whole(out) as temp:
        manifest = fill(temp, originals, settings, given)
        total = weigh(temp, settings.limit_mb)
    for role, about in manifest["members"].items():
        print(f"{role:<8} {about['parameters']:>12,} weights {about['bytes'] / 1e6:>8.2f} MB")
    print(f"{out}: {total / 1e6:.2f} MB in all")
    terminal.made(settings.name, f"{', '.join(manifest['members'])}, {total / 1e6:.2f} MB", out, "card", out)
    return out


def foreign(out: Path) -> list[str]:
    """What lies in a bundle's folder that `ship` does not write."""
    ours = {MANIFEST, CARD, f"tokenizer/{TOKENIZER}", *(f"{role}.safetensors" for role in ROLES)}
    found = [p.relative_to(out).as_posix() for p in out.rglob("*") if not p.is_dir()] if out.is_dir() else []
    return sorted(name for name in found if name not in ours)


def read_originals(settings: ShipSettings) -> Originals:
    """The models of the runs, or of other bundles, checked to belong together."""
    if is_public(settings.student):
        own = f"tsdfm import {settings.student} --out FOLDER"
        raise UserError(
            f"{settings.student} is no run: of a public or exported model make one first ({own}), and ship it"
        )
    student = load(settings.student, "cpu")
    spec, teacher, compass = student.velocity.spec, None, None
    if settings.teacher is not None:
        teacher = load_velocity(settings.teacher, role="teacher")
        spec.match(teacher.spec, f"the teacher {settings.teacher}")
    if settings.compass is not None:
        compass = load_compass(settings.compass, "cpu")
        compass.match(spec, f"the student {settings.student}")
    return Originals(student, teacher, compass)


def fill(folder: Path, originals: Originals, settings: ShipSettings, given: str | None) -> dict[str, Any]:
    """Write every file of the bundle; returns its manifest. The packed models are loaded once, to be compared."""
    originals.student.tokenizer.save(folder / "tokenizer")
    weights = {role: model.net.state_dict() for role, model in originals.members().items()}
    room = int(settings.limit_mb * 1e6) - weigh(folder, settings.limit_mb) - len((given or "").encode()) - FACTS
    packed, coarse = fit(weights, settings.weights, room)
    members = {}
    for role, model in originals.members().items():
        error = weight_change(weights[role], packed.unpacked(role))
        written = write_tensors(folder / f"{role}.safetensors", packed.stored[role])
        members[role] = {**described(model), "weights_error": error, **written}
    spec = originals.student.velocity.spec
    manifest = {
        "format": FORMAT,
        "stage": STAGE,
        "name": settings.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "weights": settings.weights,
        "coarse": coarse,
        "tokenizer": spec.tokenizer,
        "defaults": to_dict(settings.defaults),
        "licence": settings.licence or descent_at(originals.student.velocity.checkpoint).get("licence"),
        "members": members,
    }
    write_json(folder / MANIFEST, manifest)
    weigh(folder, settings.limit_mb)  # already here: the comparison takes longest
    compare(folder, originals, members)
    (folder / CARD).write_text(card_text(manifest, given), encoding="utf-8")
    sync_file(folder / CARD)
    write_json(folder / MANIFEST, manifest)
    return manifest


def descent_at(checkpoint: Path | None) -> dict[str, Any]:
    """The public model that a checkpoint of a run, or a model of a bundle, is or descends from."""
    return descent_of(checkpoint if checkpoint.is_file() else run_folder(checkpoint)) if checkpoint else {}


def described(model: Velocity | Compass) -> dict[str, Any]:
    """What the bundle's manifest says of a model, by its run or the bundle it is from, without paths of the machine."""
    assert model.checkpoint is not None
    if (shipped := member_at(model.checkpoint)) is not None:
        kept = {name: value for name, value in shipped.about.items() if name not in OF_PACKING}
        return {**kept, "packed_from": model.sha256}
    manifest, state = read_manifest(model.checkpoint), read_state(model.checkpoint)
    parent = manifest.get("parent") or {}
    return {
        "stage": manifest.get("stage"),
        "compass" if isinstance(model, Compass) else "model": model.spec.plain(),
        "parameters": parameters(model.net),
        "step": state["step"],
        "tokens": state.get("tokens"),
        "run": run_folder(model.checkpoint).resolve().name,
        "parent": named(parent.get("path")),
        **({"descent": descent} if (descent := descent_at(model.checkpoint)) else {}),
        "packed_from": model.sha256,
        "settings": bare(manifest.get("settings")),
        "seed": manifest.get("seed"),
        "versions": manifest.get("versions"),
    }


def compare(folder: Path, originals: Originals, members: dict[str, dict[str, Any]]) -> None:
    """Load the packed models as a user will, and note in `members` how far they are from what was trained."""
    moments, student = moments_of(originals.student), originals.student.velocity
    for role, model in originals.members().items():
        if isinstance(model, Compass):
            members[role]["change"] = energy_change(model, load_compass(folder / role, "cpu"), student, moments)
        else:
            members[role]["change"] = prediction_change(model, load_velocity(folder / role), moments)


def named(parent: str | None) -> str | None:
    """What a model started from, without its place: the run's folder, or BUNDLE/teacher for a bundle's packed file.

    >>> named("a/b/teacher-uniform"), named("a/tsdfm-stories/teacher.safetensors")
    ('teacher-uniform', 'tsdfm-stories/teacher')
    """
    if parent is None or not parent.endswith(".safetensors"):
        return None if parent is None else str(bare(parent))
    place = Path(parent)
    return f"{place.parent.name}/{place.stem}"


def bare(value: Any) -> Any:
    """Plain values without the paths of the machine they come from: of each, its last part."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items()}
    if isinstance(value, list):
        return [bare(item) for item in value]
    return value.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if isinstance(value, str) else value


def weigh(folder: Path, limit_mb: float) -> int:
    """The bytes of all files below, if they are within the limit."""
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if total > limit_mb * 1e6:
        raise UserError(
            f"the bundle has {total / 1e6:.1f} MB, more than --limit-mb {limit_mb:g}: "
            "ship fewer or smaller models, coded weights, or raise the limit"
        )
    return total


def read_card(path: Path | None) -> str | None:
    """What the user wrote for the card."""
    return None if path is None else read_text(path)


def show_card(settings: CardSettings) -> dict[str, Any]:
    """`tsdfm card`: print it; returns the bundle's manifest, with the card in it."""
    place = settings.model or default_model()
    found = find_shipped(place)
    if found is None:
        where = "is no bundle" if place.exists() else f"does not exist{unshipped(place)}"
        raise UserError(f"{place} {where}: give what `tsdfm ship` made")
    path = found[0].folder / CARD
    if not path.is_file():
        raise UserError(f"{path} is missing: {MEND}")
    text = read_text(path)
    print(terminal.visible(text), end="")
    return {**found[0].manifest, "card": text}
