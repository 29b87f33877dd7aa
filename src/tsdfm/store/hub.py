"""Is the hub there? Asked before its client is, which tries for a minute, a line a try, before it gives up."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

PATIENCE = 3.0  # seconds for an answer of any kind; where there is no network, the refusal comes at once


def out_of_reach() -> str | None:
    """Why nothing can be fetched from the hub, in a few words; None where it answers.

    Asked by the client's own session: proxies and another endpoint are those of the fetching itself.
    """
    constants = importlib.import_module("huggingface_hub.constants")
    utils = importlib.import_module("huggingface_hub.utils")
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answered, done = threading.Event(), threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # a class for each way to fail, and others in each version of the client
            utils.get_session().head(constants.ENDPOINT, timeout=PATIENCE)
            answered.set()
        done.set()

    threading.Thread(target=ask, daemon=True).start()  # to look up a name can take long, and heeds no limit
    done.wait(PATIENCE)
    return None if answered.is_set() else "the hub cannot be reached"


@contextlib.contextmanager
def from_cache() -> Iterator[None]:
    """Inside, nothing is asked of the hub: `local_files_only` alone leaves some questions to it."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
