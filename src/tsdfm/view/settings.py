"""The settings of `tsdfm view`."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.errors import UserError
from tsdfm.ranges import SEED
from tsdfm.settings import ModelPath, OutFile, Settings, option


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Settings):
    """Watch texts come to be, method beside method, in the browser or in the terminal."""

    paths: tuple[ModelPath, ...] = option(
        (), "pipeline folder, run folders, bundles or trajectory files; empty: the shipped models"
    )
    sample: bool = option(False, "sample a pipeline's models afresh, also where recorded trajectories lie")
    steps: int = option(8, "network passes, when models are sampled", low=1)
    n: int = option(3, "texts, when models are sampled", low=1)
    seed: int = option(0, "seed; the same noise for every model of a source", **SEED)
    compass: ModelPath | None = option(
        None, "score every state by this compass, when models are sampled; a bundle has its own"
    )
    out: OutFile | None = option(None, "write the page to this file; none is a file in the temporary folder")
    image: OutFile | None = option(None, "write a still picture of the first text (SVG) to this file instead")
    no_open: bool = option(False, "write the page and print its path, but open no browser")
    serve: int | None = option(
        None, "serve the page on 127.0.0.1 at this port (0 finds one) instead of opening it", low=0, high=65535
    )
    terminal: bool = option(False, "play in the terminal instead")
    seconds: float = option(4.0, "how long the terminal plays", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is not None and (self.terminal or self.serve is not None or self.out is not None):
            raise UserError("--image makes a picture and no page: leave out --serve, --out and --terminal, or --image")
        if self.terminal and (self.serve is not None or self.out is not None):
            raise UserError("--terminal makes no page: leave out --serve and --out, or --terminal")
