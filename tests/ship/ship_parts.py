"""Runs to be shipped, made without training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tiny_nets import stir, tiny_shape, tiny_spec

from tsdfm.cli import main
from tsdfm.compass.network import spec_from
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.store.checkpoint import Store
from tsdfm.store.files import write_json
from tsdfm.tokens.tokenizer import ByteTokenizer


def a_spec(**given: Any) -> VelocitySpec:
    """Large enough that its matrices are packed."""
    return dataclasses.replace(tiny_spec(source="uniform", shape=tiny_shape(width=64, heads=2)), **given)


def save(out: Path, stage: str, spec: Any, seed: int) -> Path:
    """A run as the engine leaves it, with an average that differs from the plain weights, and paths in its manifest."""
    key = "compass" if stage == "compass" else "model"
    manifest = {
        "stage": stage,
        key: spec.plain(),
        "seed": 0,
        "settings": {"tokens": str(out.parent / "tokens"), "loop": {"batch": 32}, "optim": {"lr": 0.25}},
        "inputs": {"tokens": {"path": str(out.parent / "tokens"), "sha256": "0" * 64}},
        "parent": {"path": str(out.parent / "origin"), "sha256": "0" * 64},
        "descent": {"source": "theirs", "layout": "causal"},
        "versions": {"tsdfm": "0"},
    }
    parts = {name: stir(spec.network(), seed + more, 0.2).state_dict() for more, name in enumerate(("model", "ema"))}
    Store(out).save(40, parts, {"tokens": 12345}, manifest)
    write_json(out / "manifest.json", manifest)
    if key == "model":
        ByteTokenizer().save(out / "tokenizer")
    return out


def make_runs(home: Path) -> Path:
    """HOME/{student, teacher, compass, teacher-mask}."""
    save(home / "student", "ts-dfm", a_spec(step_size=True), 1)
    save(home / "teacher", "teacher", a_spec(), 3)
    save(home / "compass", "compass", spec_from(a_spec(), tiny_shape(width=64, heads=2), "nce"), 5)
    save(home / "teacher-mask", "teacher", a_spec(source="mask"), 7)
    return home


def words(home: Path, out: Path, *more: str) -> list[str]:
    """The command that ships them."""
    runs = ["--teacher", str(home / "teacher"), "--compass", str(home / "compass")]
    return ["ship", str(home / "student"), *runs, "--name", "tsdfm-stories", "--out", str(out), *more]


def ship(home: Path, out: Path, *more: str) -> Path:
    """A bundle."""
    assert main(words(home, out, *more)) == 0
    return out
