"""The settings of `tsdfm serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Name, option


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Serve models over HTTP: completions in OpenAI's shape, infill, streams of every pass, and a page to play with."""

    models: tuple[ModelPath, ...] = option((), "run folders, bundles or shipped names; empty: the shipped model")
    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 is every one of this machine")
    port: int = option(8000, "port to listen at; 0 finds one")
    names: tuple[Name, ...] = option((), "names besides localhost that clients may call this server by; * is any")
    origins: tuple[Name, ...] = option((), "other origins whose pages may ask (CORS), such as https://example.org")
    api_key: str | None = option(None, "what clients must send as their key; none: the variable TSDFM_API_KEY, if set")
    rows: int | None = option(None, "texts in the running batch of a device; none: 8 on a CPU, on a GPU what fits")
    shapes: tuple[int, ...] = option(
        (), "batch sizes that passes are filled up to; one alone: the same bits in any crowd; none: as the device wants"
    )
    queue: int = option(256, "texts that wait for a place; a request beyond them gets 429")
    deadline: float = option(120.0, "seconds for a request, the wait included; then 504")
    max_n: int = option(16, "most texts of a request")
    max_steps: int = option(1024, "most passes of a text")
    max_body: int = option(1 << 20, "most bytes of a request")
    compass: ModelPath | None = option(None, "a compass for guided requests; none: a shipped model's own")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    workers: int = option(1, "devices: cuda:0, cuda:1, …; on a CPU they share its cores")
    quick: Literal["auto", "compile", "record", "off"] = option(
        "auto", "on a GPU, record passes when the server starts: auto and compile compile them before, record does not"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"a port lies in 0 to 65535, not {self.port}")
        for name in ("queue", "max_n", "max_steps", "max_body", "workers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if (self.rows is not None and self.rows < 1) or any(shape < 1 for shape in self.shapes):
            raise UserError("rows and shapes are numbers of texts, from 1 on")
        if not self.deadline > 0:
            raise UserError(f"the deadline is a number of seconds above 0, not {self.deadline:g}")
        if self.max_n > self.queue:
            raise UserError(f"max_n is {self.max_n} and only {self.queue} texts may wait: raise --queue")
        if self.workers > 1 and ":" in self.device:
            raise UserError(f"{self.device} is one device: leave out --workers, or the number of the device")
