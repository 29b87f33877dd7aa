"""The roll-out of TS-DFM: the RK-4 chain whose midpoints a compass chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn

from tsdfm.compass.model import Compass, lean
from tsdfm.distil.beyond.anneal import annealed
from tsdfm.distil.beyond.refresh import Refresher
from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.distil.chain import Chain
from tsdfm.distil.midpoint import Energy, Policy, policy_from
from tsdfm.distil.parts import Teacher
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.engine.distributed import Processes
from tsdfm.engine.runner import quickened
from tsdfm.engine.task import Context
from tsdfm.nn.velocity import VelocitySpec


class NavigatedSettings(Protocol):
    """What this roll-out asks for besides a student's settings."""

    @property
    def policy(self) -> str: ...
    @property
    def probe_every(self) -> int: ...
    @property
    def navigate(self) -> NavigateSettings: ...
    @property
    def refresh(self) -> RefreshSettings: ...


class NavigatedChain(Chain):
    """`Chain` by one of the navigated policies; the compass may learn on (`beyond.refresh`), τ may move."""

    def __init__(self, settings: Any, spec: VelocitySpec, compass: Energy | None) -> None:
        super().__init__(settings, spec)
        self.own: NavigatedSettings = settings
        self.compass = compass
        self.refresher: Refresher | None = None

    def bind(self, context: Context, teacher: Teacher, student: nn.Module) -> None:
        self.world: Processes = context.world
        if self.own.refresh.every:
            assert isinstance(self.compass, Compass)  # the settings see to it
            self.refresher = Refresher(self.compass, self.own.refresh, self.spec, self.settings.loop.seed)
            self.compass = self.refresher.compass
        elif isinstance(self.compass, Compass) and self.compass.bf16 and context.graphs is not None:
            self.compass = lean(self.compass)
        if self.settings.loop.compile and isinstance(self.compass, Compass) and context.world.device.type == "cuda":
            self.compass = replace(self.compass, net=quickened(self.compass.net, context.graphs))
            if self.refresher is not None:
                self.refresher.compass = self.compass
        super().bind(context, teacher, student)

    def may_record(self) -> bool:
        return self.refresher is None  # a refreshed compass is another in every step

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None:
        if self.refresher is not None and self.refresher.due(step):
            self.refresher.update(batch, teacher, self.world, step)

    def stats(self, step: int | None) -> Stats:
        every = self.own.probe_every
        return Stats(self.own.navigate.k, probe=step is None or (every > 0 and step % every == 0))

    def policy(self, step: int, stats: Stats | None, given: Tensor | None = None) -> Policy:
        navigate = annealed(self.own.navigate, step, self.settings.loop.steps)
        held, learned = (self.held, False) if given is None else (given, True)
        return policy_from(
            self.own.policy,
            self.jump,
            settings=navigate,
            compass=self.compass,
            held=held,
            stats=stats,
            learned=learned,
        )

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        return self.refresher.parts() if self.refresher is not None else {}
