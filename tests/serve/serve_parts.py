"""Small served models, and what the same request gives offline."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tiny_nets import tiny_spec, tiny_velocity

from tsdfm.samples.model import TextModel
from tsdfm.serve.jobs import Ask
from tsdfm.serve.scheduler import Limits, Scheduler
from tsdfm.serve.served import Served
from tsdfm.store.defaults import SampleDefaults
from tsdfm.tokens.tokenizer import ByteTokenizer

DEFAULTS = SampleDefaults(steps=4, temperature=0.9)


def served(name: str = "tiny", *, shapes: tuple[int, ...] = (1,), dtype: Any = torch.float32, **spec: Any) -> Served:
    model = TextModel(tiny_velocity(tiny_spec(**spec), dtype), ByteTokenizer(), "teacher")
    return Served(name, model, DEFAULTS, shapes=shapes)


@contextmanager
def running(*models: Served, devices: int = 1, clock: Any = None, **limits: Any) -> Iterator[Scheduler]:
    more = {} if clock is None else {"clock": clock}
    scheduler = Scheduler([models] * devices, Limits(**limits), **more)
    try:
        yield scheduler
    finally:
        scheduler.close(wait=False)


@contextmanager
def gate() -> Iterator[threading.Event]:
    """Something to wait for, which opens at the end of the block at the latest."""
    made = threading.Event()
    try:
        yield made
    finally:
        made.set()


def offline(model: TextModel, ask: Ask) -> list[list[int]]:
    """The tokens that `TextModel.sample` writes for a request, text by text."""
    made = model.sample(
        ask.n,
        DEFAULTS.steps if ask.steps is None else ask.steps,
        ask.seed,
        prefix=list(ask.prefixes) or None,
        infill=list(ask.infills) or None,
        temperature=DEFAULTS.temperature if ask.temperature is None else ask.temperature,
        top_p=ask.top_p,
        jump=ask.jump,
        batch=1,
    )
    tokens: list[list[int]] = made.tokens.tolist()
    return tokens


def texts(scheduler: Scheduler, asks: Sequence[Ask]) -> list[list[list[int]]]:
    """The tokens of requests that are made at once."""
    jobs = [scheduler.submit(ask) for ask in asks]
    return [[text.tokens for text in job.done.result(600)] for job in jobs]
