"""The settings of `tsdfm completion`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tsdfm.settings import Settings, option, required


@dataclass(frozen=True, kw_only=True)
class CompletionSettings(Settings):
    """Print the script by which a shell completes commands."""

    shell: Literal["bash", "zsh", "fish"] = required("the shell: bash, zsh or fish")
    words: tuple[str, ...] = option((), "what the script gives at every Tab: the words so far, each after a colon")
