"""Tokenise documents on several threads and hand them on in their own order."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdfm.tokens.tokenizer import Tokenizer

CHUNK_CHARACTERS = 200_000  # large enough that handing over costs nothing, small enough that threads share evenly
CHUNK_DOCUMENTS = 512


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts so that each group is about the same work."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS or len(held) >= CHUNK_DOCUMENTS:
            yield held
            held, size = [], 0
    if held:
        yield held


def cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux knows; elsewhere it is the machine's count
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def encode_in_order(
    texts: Iterable[str], tokenizer: Tokenizer, dtype: np.dtype[Any], workers: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (characters, ids with end-of-text at their end) of each text, in the order of the texts.

    Threads and not processes: the tokenizer works without Python's lock, nothing is copied, and a killed run leaves no
    orphans. At most a few chunks are in flight, so memory does not grow with the corpus.
    """
    workers = workers or cores()

    def work(texts: list[str]) -> list[tuple[int, NDArray[Any]]]:
        end = np.array([tokenizer.end_of_text], dtype=dtype)
        found = tokenizer.encode_arrays(texts, dtype)
        return [(len(text), np.concatenate([ids, end])) for text, ids in zip(texts, found, strict=True)]

    waiting: deque[Future[list[tuple[int, NDArray[Any]]]]] = deque()
    with _one_thread_a_call(), ThreadPoolExecutor(workers, thread_name_prefix="tokens") as pool:
        try:
            for chunk in chunks(texts):
                waiting.append(pool.submit(work, chunk))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextlib.contextmanager
def _one_thread_a_call() -> Iterator[None]:
    """Keep the engine from starting its own threads inside ours, so that `workers` means what it says."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
