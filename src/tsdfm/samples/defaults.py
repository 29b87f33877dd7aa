"""How a model is sampled where nothing was said: as its bundle asks for a shipped student, else as every run is.

What such a student became by an export, and an import of that, is sampled like it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tsdfm.settings import build
from tsdfm.store.defaults import SampleDefaults

if TYPE_CHECKING:
    from tsdfm.samples.settings import SampleSettings

How = Literal["auto", "record", "compile", "off"]
QUICK = "on a GPU, replay recorded passes: auto where it pays, record at once, compile before (slow start), or off"


RUNS = SampleDefaults(n=4, steps=16)


def defaults_of(model: Path) -> SampleDefaults:
    """The defaults of what `model` means. They are a bundle's student's own: its teacher is sampled like a run."""
    from tsdfm.public.model import is_public, public_defaults
    from tsdfm.store.bundle import find_shipped
    from tsdfm.store.checkpoint import find_checkpoint
    from tsdfm.store.manifest import read_manifest

    found = find_shipped(model)
    if found is not None:
        own = found[0].defaults if found[1] in (None, "student") else None
    else:
        own = public_defaults(model) if is_public(model) else read_manifest(find_checkpoint(model)).get("defaults")
    return build(SampleDefaults, own, "defaults") if isinstance(own, dict) else RUNS


def manner_of(settings: SampleSettings, model: Path) -> SampleDefaults:
    """What was asked for, and the model's defaults for the rest."""
    own = defaults_of(model)
    return SampleDefaults(
        n=own.n if settings.n is None else settings.n,
        steps=own.steps if settings.steps is None else settings.steps,
        temperature=own.temperature if settings.temperature is None else settings.temperature,
        jump=own.jump if settings.jump == "auto" else settings.jump,
    )
