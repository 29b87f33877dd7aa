"""Models by their names on the hub: `tsdfm.from_pretrained` and `TextModel.push_to_hub`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tsdfm.nn.velocity import Velocity
from tsdfm.public.export import check_name, known_of, left_over, push, write_folder
from tsdfm.samples.model import TextModel, load
from tsdfm.tokens.tokenizer import Tokenizer


def from_pretrained(name: str | Path, device: str = "auto", *, precision: str = "auto", **words: Any) -> TextModel:
    """The model of a hub name, OWNER/NAME, or of anything else that `tsdfm.load` takes.

    `words` are those of `public.model.read_public`: revision, part, kind, heads and tokenizer.
    """
    return load(name, device, precision=precision, **words)


def push_model(velocity: Velocity, tokenizer: Tokenizer, name: str) -> None:
    """Upload a model as it is in memory, with what its run knows of its origin, or its bundle says of it."""
    check_name(name)
    place = velocity.checkpoint
    manifest, words = known_of(place) if place is not None and place.exists() else ({}, {})
    rest = left_over(place) if place is not None else {}
    weights = {key: tensor.detach().cpu() for key, tensor in velocity.net.state_dict().items()}
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "model"
        write_folder(folder, velocity.spec, tokenizer, weights, manifest, rest, name=name, **words)
        push(folder, name, kept=False)
