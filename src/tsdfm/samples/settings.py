"""The settings of `tsdfm sample`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.distil.settings import NavigateSettings, PolicyName
from tsdfm.ranges import SEED
from tsdfm.samples.defaults import QUICK, How
from tsdfm.settings import ModelPath, OutFile, Settings, option
from tsdfm.store.defaults import JUMP


@dataclass(frozen=True, kw_only=True)
class SampleSettings(Settings):
    """Write texts with a trained model."""

    model: ModelPath | None = option(None, "run folder, checkpoint, bundle or shipped name; none: the shipped model")
    n: int | None = option(None, "texts to write, for each prefix; none: 4, or what a shipped model asks for", low=1)
    steps: int | None = option(None, "network passes for each text; none: 16, or what a shipped model asks for", low=1)
    seed: int = option(0, "the random numbers of text i depend on the seed and i alone", **SEED)
    prompt: tuple[str, ...] = option(
        (), "what to answer, \\n for a newline; for models of plain text, how texts begin; n texts for each"
    )
    prefix: tuple[str, ...] = option((), "how texts begin, as it is; given several times, n texts for each")
    prefix_file: Path | None = option(
        None, "more prompts, one a line, or JSON lines with a field prefix, prompt, question or text; - is stdin"
    )
    infill: tuple[str, ...] = option(
        (), "template with gaps: 'Mia has {2} balls.' leaves two tokens to write, {1-4} one to four"
    )
    temperature: float | None = option(
        None,
        "below 1 is safer and narrower, 0 takes the likeliest token; none: 1, or what a shipped model asks for",
        low=0,
    )
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability", above=0, high=1)
    jump: str = option("auto", JUMP)
    length: int | None = option(
        None, "tokens of a text, where they are more than the model's: written in windows", low=1
    )
    stride: int | None = option(None, "tokens that each window after the first adds; none: half of the model's", low=1)
    cfg: float = option(
        0.0, "strength of classifier-free guidance by what is given, for mask models: 2 passes a step", low=0
    )
    guide: PolicyName = option("blind", "navigate every step by a compass: sequence, token or sequence-to-token")
    compass: ModelPath | None = option(
        None, "a compass's run or bundle, for --guide (none: the shipped model's own) or a trajectory's energies"
    )
    weights: Literal["ema", "model"] = option("ema", "averaged or plain weights")
    checkpoint: Literal["newest", "best"] = option("newest", "which checkpoint of a run")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    long: bool = option(False, "write even what would take more than a day")
    batch: int | None = option(None, "texts at a time; none sizes it by memory", low=1)
    quick: How = option("auto", QUICK)
    out: OutFile | None = option(None, "also write the texts to this file, a JSON object a line")
    live: bool = option(False, "replay the texts appearing step by step in the terminal")
    stream: bool = option(False, "show every pass as it comes: in place on a terminal, else as JSON lines")
    save_trajectory: OutFile | None = option(None, "write the trajectory, for the viewers, to this file")
    navigate: NavigateSettings = option(NavigateSettings(), "navigation, for --guide")

    @property
    def watched(self) -> bool:
        """Is every step kept?"""
        return self.live or self.save_trajectory is not None
