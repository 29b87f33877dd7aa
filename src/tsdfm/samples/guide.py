"""Guidance at generation time: a midpoint policy and its compass, for any checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tsdfm.distil.midpoint import Energy, policy_from
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.errors import UserError
from tsdfm.flow import Jump, LeaveJump
from tsdfm.nn.velocity import Velocity
from tsdfm.store.bundle import find_shipped

if TYPE_CHECKING:
    from tsdfm.compass.model import Compass


@dataclass(frozen=True)
class Guide:
    """How every step of a generation is made: `sequence`, `token` or `sequence-to-token`, by energies of `compass`.

    Example: `model.sample(n=4, steps=16, guide=Guide("sequence-to-token", load_compass("runs/demo/compass-uniform")))`
    """

    policy: str
    compass: Energy | None = None
    settings: NavigateSettings = NavigateSettings()  # noqa: RUF009 (frozen)

    def around(self, jump: Jump, held: Tensor | None, stats: Stats, learned: bool = False) -> Jump:
        """The jump, guided; positions `held` stay as they are in every state that is scored.

        `learned`: the model learned nothing but the others, as one of answers (`distil.midpoint.Navigated`).
        """
        if not isinstance(jump, LeaveJump):
            raise UserError("this jump cannot be guided: use euler, cumulative or ancestral")
        return policy_from(
            self.policy,
            jump,
            settings=self.settings,
            compass=self.compass,
            held=held,
            stats=stats,
            learned=learned,
        )


def guide_from(
    policy: str, compass: Path | None, settings: NavigateSettings, velocity: Velocity, model: Path | None = None
) -> Guide | None:
    """The guide that was asked for on the command line; none for `blind`. A shipped `model` brings its own compass."""
    if policy == "blind":
        return None
    if settings.blocks > velocity.spec.length:
        tokens = velocity.spec.length
        raise UserError(f"navigate.blocks is {settings.blocks}, and a text has {tokens} tokens: take 8 or 16")
    if compass is None and model is not None and settings.selector != "random":
        compass = own_compass(model)
    if compass is None:
        if settings.selector != "random":
            raise UserError(f"--guide {policy} needs --compass, or --navigate.selector random")
        return Guide(policy, None, settings)
    return Guide(policy, compass_for(compass, velocity, "the model to be guided"), settings)


def own_compass(model: Path) -> Path | None:
    """The compass that was shipped with a model, if there is one."""
    found = find_shipped(model)
    return found[0].folder if found is not None and "compass" in found[0].roles else None


def compass_for(path: Path, velocity: Velocity, what: str) -> Compass:
    """The compass in `path`, if it belongs with the model."""
    from tsdfm.compass.model import load_compass

    found = load_compass(path, velocity.device)
    found.match(velocity.spec, what)
    return found
