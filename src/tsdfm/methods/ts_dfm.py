"""TS-DFM: FS-DFM whose midpoints a compass chose: trajectory-shaped discrete flow matching, the paper of this project.

The chain of `fs_dfm` with another midpoint policy, and nothing else: above τ the state after a half step is the best
of K candidates by their energy, refined token by token and kept where the energy does not rise (`distil.navigate`,
Algorithm 1). With τ = 1 it is FS-DFM, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.distil.settings import NavigateSettings, Navigation, StudentSettings
from tsdfm.errors import UserError
from tsdfm.methods import StudentMethod
from tsdfm.methods._teacher import frozen_compass
from tsdfm.settings import ModelPath, option

if TYPE_CHECKING:
    from tsdfm.distil.navigated import NavigatedChain
    from tsdfm.engine.distributed import Processes
    from tsdfm.nn.velocity import VelocitySpec


@dataclass(frozen=True, kw_only=True)
class TSDFMSettings(StudentSettings):
    """TS-DFM: a few-step model distilled from a teacher or from FS-DFM, by midpoints that a compass chose."""

    policy: Navigation = option("sequence-to-token", "how midpoints are made: candidates, refinement, or both")
    compass: ModelPath | None = option(None, "the compass's run; selector random does without")
    probe_every: int = option(50, "steps between comparisons of blind and navigated energies; 0 never", low=0)
    navigate: NavigateSettings = option(NavigateSettings(), "navigation")
    refresh: RefreshSettings = option(RefreshSettings(), "a compass that keeps up with the student")

    def __post_init__(self) -> None:
        super().__post_init__()
        asks = self.navigate.selector != "random"
        if asks and self.compass is None:
            raise UserError(f"policy {self.policy} needs --compass, or --navigate.selector random")
        if self.navigate.blocks and self.policy == "token":
            raise UserError("policy token chooses among no candidates: leave navigate.blocks at 0")
        if self.refresh.every and not asks:
            raise UserError("refresh.every refreshes a compass: it needs a selector that asks one")
        if self.refresh.every and self.loop.parallel == "fsdp":
            raise UserError("refresh.every works with one process or ddp, not with fsdp")


class TSDFM(StudentMethod):
    """Trajectory-shaped discrete flow matching."""

    name, title = "ts-dfm", "TS-DFM"
    help = "few-step student, by RK-4 chains with midpoints that a compass chose"
    settings: ClassVar[type] = TSDFMSettings
    needs, blind = ("init_from", "compass"), "fs-dfm"

    def rollout(self, settings: TSDFMSettings, spec: VelocitySpec, world: Processes) -> NavigatedChain:
        from tsdfm.distil.navigated import NavigatedChain

        compass = None
        if settings.compass is not None:
            compass = frozen_compass(settings.compass, spec, world, settings.init_from)
        return NavigatedChain(settings, spec, compass)

    def inputs(self, settings: TSDFMSettings) -> dict[str, Path]:
        found = super().inputs(settings)
        return found if settings.compass is None else {**found, "compass": settings.compass}


METHOD = TSDFM()
