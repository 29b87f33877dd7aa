"""The settings of `tsdfm import` and `tsdfm export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Settings, defaults, option, required


@dataclass(frozen=True, kw_only=True)
class ImportSettings(Settings):
    """Make a run of a public checkpoint: MDLM, SEDD, SDTT, Duo, IDLM, DFM, FS-DFM, LLaDA, Dream or SDAR.

    A causal model (Llama, Qwen2, Qwen3, a storyteller) becomes the start of a flow model on the rows of --tokens.
    """

    source: str = required("a .safetensors, .bin or .pth file, a folder with one, or OWNER/NAME of the hub")
    out: Path = required("folder for the run")
    revision: str = option("", "branch, tag or commit of a hub model")
    part: str = option("", "which of several models in one torch file, as in student_model")
    kind: str = option("", "mdlm, sdtt, sedd, duo, dfm, fs-dfm, llada, dream or sdar, where a file fits several")
    heads: int = option(0, "attention heads, where the file does not say; 0 reads them off it", low=0, high=4096)
    tokenizer: Path | None = option(None, "folder with the tokenizer's files; none looks beside the weights")
    mask: int | None = option(None, "the mask token of a llada, dream or sdar whose config does not say it", low=0)
    block: int = option(0, "tokens in a block of an sdar; 0: as its config says, or 4", low=0, high=2**20)
    length: int = option(0, "tokens in a row of a llada, dream or sdar; 0: 1024", low=0, high=2**20)
    tokens: Path | None = option(None, "a causal model: the tokens folder that a flow model is to learn from")
    noise: Literal["uniform", "mask"] = option("uniform", "a causal model: what texts of the flow model start as")
    grow: int = option(
        1, "a causal model: blocks for each of its own; the new ones begin by adding nothing", low=1, high=64
    )


def check_start(settings: ImportSettings, where: str = "--") -> None:
    """Refuse what is said of a causal model as if it were a public flow model; `where` stands before the setting."""
    usual = defaults(ImportSettings)
    for word in ("part", "kind", "heads", "tokenizer", "mask", "block", "length"):
        if getattr(settings, word) != usual[word]:
            raise UserError(f"{where}{word} is not for a causal model, whose flow model is as its tokens: leave it out")


@dataclass(frozen=True, kw_only=True)
class ExportSettings(Settings):
    """Write a model as a folder for the hub: safetensors, config.json, the tokenizer's files and a card."""

    model: ModelPath = required("a run, a checkpoint, a bundle or a shipped name")
    to: Path = required("folder to write")
    card: Path | None = option(None, "Markdown about what it is for and its limits; facts are added to it")
    licence: str = option("", "licence of the weights, in the hub's word for it, as in apache-2.0")
    push: str = option("", "also upload it to the hub under this name, OWNER/NAME")
