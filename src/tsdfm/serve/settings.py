"""The settings of `tsdfm serve`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Name, Settings, option


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Settings):
    """Serve models over HTTP: completions in OpenAI's shape, infill, streams of every pass, and a page to play with."""

    models: tuple[ModelPath, ...] = option((), "run folders, bundles or shipped names; empty: the shipped model")
    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 is every one of this machine")
    port: int = option(8000, "port to listen at; 0 finds one", low=0, high=65535)
    names: tuple[Name, ...] = option((), "names besides localhost that clients may call this server by; * is any")
    origins: tuple[Name, ...] = option((), "other origins whose pages may ask (CORS), such as https://example.org")
    api_key: str | None = option(None, "what clients must send as their key; none: the variable TSDFM_API_KEY, if set")
    rows: int | None = option(
        None, "texts in the running batch of a device; none: 8 on a CPU, on a GPU what fits", low=1
    )
    shapes: tuple[int, ...] = option(
        (),
        "batch sizes that passes are filled up to; one alone: the same bits in any crowd; none: as the device wants",
        low=1,
    )
    queue: int = option(256, "texts that wait for a place; a request beyond them gets 429", low=1)
    deadline: float = option(120.0, "seconds for a request, the wait included; then 504", above=0, high=86400)
    max_n: int = option(16, "most texts for each prompt of a request", low=1)
    max_steps: int = option(1024, "most passes of a text", low=1)
    max_body: int = option(1 << 20, "most bytes of a request", low=1)
    compass: ModelPath | None = option(None, "a compass for guided requests; none: a shipped model's own")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    workers: int = option(1, "devices: cuda:0, cuda:1, …; on a CPU they share its cores", low=1)
    quick: Literal["auto", "compile", "record", "off"] = option(
        "auto", "on a GPU, record passes when the server starts: auto and compile compile them before, record does not"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api_key == "":
            raise UserError("api_key is empty: give a key, or leave it out for a server without one")
        for name in self.names:
            if not re.fullmatch(r"\*|[\w.-]+|\[[0-9a-fA-F:.]+\]", name):
                raise UserError(f"{name} is no name of a machine: leave out http://, the port and the path")
        for origin in self.origins:
            written = re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d+)?", origin)
            if not written or re.fullmatch(r"http://.*:80|https://.*:443", origin):  # browsers leave these out
                told = "in small letters, without a path or the usual port"
                raise UserError(f"{origin} is no origin: write one as https://example.org, {told}")
        if self.max_n > self.queue:
            raise UserError(f"max_n is {self.max_n} and only {self.queue} texts may wait: raise --queue")
        if self.workers > 1 and ":" in self.device:
            raise UserError(f"{self.device} is one device: leave out --workers, or the number of the device")
