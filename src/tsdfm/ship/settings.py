"""The settings of `tsdfm ship` and `tsdfm card`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.settings import ModelPath, Settings, option, required
from tsdfm.store.defaults import SampleDefaults


@dataclass(frozen=True, kw_only=True)
class ShipSettings(Settings):
    """Pack a student, and its teacher and compass, into one small folder to pass on.

    The averaged weights are packed: of the newest checkpoint of the student and the teacher, of the best one of the
    compass, or of the checkpoint that is named instead of a run.
    """

    student: ModelPath = required("run, checkpoint or bundle of the student")
    teacher: ModelPath | None = option(None, "run, checkpoint or bundle of its teacher, to be shipped with it")
    compass: ModelPath | None = option(None, "run, checkpoint or bundle of its compass, to be shipped with it")
    name: str = required("what the bundle is called: letters, digits, dots and dashes")
    out: Path = required("folder to write; a bundle that is there is replaced once the new one is complete")
    weights: Literal["coded", "int8", "bf16"] = option("coded", "how large matrices are stored")
    card: Path | None = option(None, "Markdown about data, licence, figures and limits; facts are added to it")
    licence: str = option("", "licence of the weights, in the hub's word for it, as in apache-2.0")
    limit_mb: float = option(
        80.0,
        "a bundle has at most so many million bytes: coded weights are as fine as that allows, others are refused",
        above=0,
    )
    defaults: SampleDefaults = option(SampleDefaults(), "how the student is sampled where nothing is said")


@dataclass(frozen=True, kw_only=True)
class CardSettings(Settings):
    """Print the card of a bundle: what its models are, what they learned from, and what they are not good for."""

    model: ModelPath | None = option(None, "a bundle's folder or a shipped name; none: the shipped model")
