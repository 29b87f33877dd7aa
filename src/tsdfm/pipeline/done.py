"""Train nothing twice: what is finished with the same settings and inputs is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod, method_of
from tsdfm.public.settings import ImportSettings
from tsdfm.settings import comparable, defaults, flags_of, merge, to_dict
from tsdfm.store.lock import clear
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import input_sha256, read_manifest


def train(stage: Callable[[Any], Path], settings: Any, title: str, method: str | None = None) -> Path:
    """Train, go on, or leave a finished run as it is."""
    if is_finished(settings, method):
        clear(settings.out)
        terminal.say(f"── {title}: there already → {settings.out}")
        return Path(settings.out)
    terminal.say(f"── {title}: {settings.loop.steps} steps{f' of {method}' if method else ''}")
    return stage(replace(settings, resume=True))


def is_finished(settings: Any, method: str | None = None) -> bool:
    """Is there a finished run of these settings, by this method? Another one is the user's to remove."""
    if not (settings.out / MANIFEST).is_file():
        return False
    found = read_manifest(settings.out)
    if not found.get("finished"):
        return False
    made_by = method_of(found)
    if method is not None and made_by is not None and made_by.name != method:
        raise UserError(
            f"{settings.out} holds a finished run of {made_by.name}, and this is {method}: "
            "remove it or give another --out"
        )
    own = made_by.inputs(settings) if isinstance(made_by, DistilMethod) else {}  # a teacher may be what it starts from
    check_same(settings, found, own)
    return True


def is_started(settings: ImportSettings) -> bool:
    """Is there a start of flow models from this causal model, on these tokens? Another one is the user's to remove."""
    from tsdfm.public.causal import causal_folder, files_of

    if not (settings.out / MANIFEST).is_file():
        return False
    found = read_manifest(settings.out)
    if found.get("origin", {}).get("files") != files_of(causal_folder(settings.source, settings.revision)):
        raise UserError(f"{settings.out} was made from another causal model: remove it or give another --out")
    check_same(settings, found, {}, {"source"})  # where the causal model lies, under whatever name
    return True


def check_same(settings: Any, found: Mapping[str, Any], own: Mapping[str, Path], aside: Iterable[str] = ()) -> None:
    """Refuse a finished run, of manifest `found`, of other settings than these but for `aside`, or of other inputs."""
    whole = merge(defaults(type(settings)), found.get("settings") or {})  # a newer setting was at its default
    then, now = (comparable(each, type(settings)) for each in (whole, to_dict(settings)))
    for name in sorted(now.keys() - set(aside)):  # what a run of old knew besides is not of its method
        if then.get(name) != now.get(name):
            raise UserError(
                f"{settings.out} holds a finished run of other settings: {name} was {then.get(name)} and is now "
                f"{now.get(name)}; use what it was, remove the run or give another --out"
            )
    for name, made_from in found.get("inputs", {}).items():
        path = input_path(settings, name, own)
        if path is None or input_sha256(path) != made_from["sha256"]:
            raise UserError(f"{settings.out} was made from other {name}: remove it or give another --out")


def input_path(settings: Any, name: str, own: Mapping[str, Path]) -> Path | None:
    """Where a stage's settings have one of its inputs, or its method, of its `own`; none if they no longer have it."""
    from tsdfm.store.bundle import on_disk

    place = next((each for each, *_ in flags_of(type(settings)) if each.rpartition(".")[2] == name), None)
    found: Path | None = (None if place is None else attrgetter(place)(settings)) or own.get(name)
    start = settings.START if name == "init_from" else None
    return found if found is None else on_disk(found, name, start)


def examine(settings: Any) -> None:
    """Validate a compass, unless the same has been done to the same checkpoint."""
    from tsdfm.compass.validate import VALIDATION, in_words, read_validation, validate
    from tsdfm.store.checkpoint import find_checkpoint

    done = settings.compass / VALIDATION
    found = read_validation(done) if done.is_file() else {}
    same = found.get("checkpoint") == find_checkpoint(settings.compass, settings.choose).name
    if not same or found.get("settings") != to_dict(settings):
        found = validate(settings)
    terminal.made(done.parent.name, in_words(found), done)
