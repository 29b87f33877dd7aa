"""A run's values in Weights & Biases, if asked for by `--loop.wandb`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from tsdfm.errors import UserError
from tsdfm.store.files import read_json, write_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.schema import read_record

PROJECT = "tsdfm"
NAME = "wandb.json"
LESS = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_save_requirements": False,
}
"""What W&B would take besides, were it not told."""


class WandbFile(TypedDict):
    """Which run of W&B this one is."""

    id: str


class WandbRun:
    """The values of metrics.jsonl and the settings of the run, in W&B; with WANDB_MODE=offline in the run's folder.

    Of the machine W&B learns its name, its load, and the versions of Python and of the system; no code, no git, no
    command line, no list of packages, nothing that is printed. A resumed run goes on with the same run of W&B, which
    keeps the first value of a step that is told twice. WANDB_PROJECT and W&B's other variables are heeded.
    """

    def __init__(self, run: Path, step: int) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("Weights & Biases is not installed: pip install 'tsdfm[wandb]'") from None
        known, again = run / NAME, {}
        if step and known.is_file():
            again = {"id": read_record(known, WandbFile, "delete it")["id"], "resume": "allow"}
        try:
            usual = {"project": PROJECT, "name": run.name, "dir": str(run)}
            self._run: Any = wandb.init(
                **{name: value for name, value in usual.items() if f"WANDB_{name.upper()}" not in os.environ},
                **again,
                config=read_json(run / MANIFEST).get("settings"),
                settings=wandb.Settings(**LESS),
            )
        except wandb.Error as problem:
            reason = str(problem).splitlines()[0]
            raise UserError(
                f"Weights & Biases does not start ({reason}): `wandb login`, or WANDB_MODE=offline to keep it here"
            ) from None
        write_json(known, {"id": self._run.id})

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Every value as `kind/name`."""
        self._run.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """Finished, or not if an error or the user ends the run."""
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))
