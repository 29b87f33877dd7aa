"""A τ that moves: from `tau` to `tau_end`, linearly over the training."""

from __future__ import annotations

from dataclasses import replace

from tsdfm.distil.settings import NavigateSettings


def annealed(navigate: NavigateSettings, step: int, steps: int) -> NavigateSettings:
    """The settings at a step of so many."""
    if navigate.tau_end is None:
        return navigate
    done = min(1.0, step / steps)
    return replace(navigate, tau=navigate.tau + (navigate.tau_end - navigate.tau) * done)
