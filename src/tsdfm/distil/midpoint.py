"""Midpoint policies: how a state is moved from t to t + h, given the model's logits.

    blind               the plain jump: FS-DFM's midpoints
    sequence            the best of K candidates
    token               the blind jump, refined
    sequence-to-token   the best of K candidates, refined: Navigate, TS-DFM's midpoints

A policy is a jump (`tsdfm.flow.Jump`), so `solve` takes it too: the same policies shape a distillation's targets and
guide a generation. Jumps that start before τ are blind, with the random numbers the blind policy would have used:
navigation draws its own from streams apart, so that τ = 1 is FS-DFM bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.distil.navigate import (
    Survey,
    blind_move,
    candidates,
    mean_entropy,
    mean_over,
    refine,
    safeguard,
    select,
    survey,
    temperatures,
)
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.errors import UserError
from tsdfm.flow import Jump, LeaveJump, Noise, RowNoise, Schedule, Source, uniform

STREAM = 1 << 20  # navigation's own streams lie this far from those of the jumps
CANDIDATES, PICK, REFINE, USES = 0, 1, 2, 3  # what one call draws numbers for


class Energy(Protocol):
    """What is asked of a compass: energies [B] of states [B, L], lower is better."""

    def energy(self, tokens: Tensor) -> Tensor: ...


class Policy(Jump, Protocol):
    """A jump that keeps held positions and may look before it moves. t and h may lie on the host: then which rows are
    navigated is known without waiting for a device."""

    def above(self, t: Tensor) -> Tensor: ...

    def advance(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, rows: Tensor, noise: Noise) -> Tensor: ...


@dataclass(frozen=True)
class Blind:
    """The jump itself. Positions `held` (bool, [L] or [B, L]) keep their token: anchors, a prefix, an infill's text."""

    jump: LeaveJump
    held: Tensor | None = None
    final_pass: ClassVar[bool] = False

    @property
    def schedule(self) -> Schedule:
        return self.jump.schedule

    @property
    def source(self) -> Source:
        return self.jump.source

    def free(self, x_t: Tensor) -> Tensor:
        """The positions that may move, [B, L]."""
        if self.held is None:
            return torch.ones_like(x_t, dtype=torch.bool)
        return ~self.held.to(x_t.device).expand_as(x_t)

    def above(self, t: Tensor) -> Tensor:
        """Which rows [n] of times t [B] the policy looks at before they move: none."""
        return torch.empty(0, dtype=torch.int64, device=t.device)

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        rows = near(self.above(t), x_t)
        return self.advance(x_t, logits, near(t, x_t), near(h, x_t), rows, noise)

    def advance(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, rows: Tensor, noise: Noise) -> Tensor:
        """The jump with everything on the device, `rows` as `above` found them: what may be recorded."""
        u = uniform(noise, (*x_t.shape, 2), x_t.device)
        return blind_move(self.jump, x_t, logits, t, h, u, self.free(x_t))


@dataclass(frozen=True)
class Scene:
    """What a navigated jump starts from; `rows` [n] are the states above τ."""

    x_t: Tensor
    logits: Tensor
    t: Tensor
    h: Tensor
    rows: Tensor
    free: Tensor
    uniforms: Callable[..., Tensor]
    survey: Survey | None = None


@dataclass(frozen=True)
class Navigated(Blind):
    """What the navigated policies share. Above τ: choose a state, refine it, keep what the compass lets by.

    `learned`: only the free positions were ever learned, as in rows with a prompt, so that only they have an entropy.
    """

    settings: NavigateSettings = NavigateSettings()  # noqa: RUF009 (frozen)
    compass: Energy | None = None
    stats: Stats | None = None
    learned: bool = False
    explores: ClassVar[bool] = True
    refines: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.compass is None and self.settings.selector != "random":
            raise UserError(f"selector {self.settings.selector} needs a compass: give one, or use selector random")

    def above(self, t: Tensor) -> Tensor:
        return (t >= self.settings.tau).nonzero()[:, 0]

    def advance(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, rows: Tensor, noise: Noise) -> Tensor:
        call = noise.draws if isinstance(noise, RowNoise) else 0
        u, free = uniform(noise, (*x_t.shape, 2), x_t.device), self.free(x_t)
        probe = self.stats is not None and self.stats.probe and len(rows) > 0
        everywhere = not self.explores or probe  # else the rows above τ need no blind jump
        if len(rows) == len(x_t) and not everywhere:
            x = x_t.clone()
        else:
            x = blind_move(self.jump, x_t, logits, t, h, u, free if everywhere else free.index_fill(0, rows, False))
        if self.stats is not None:
            self.stats.midpoints += len(x_t)
        if len(rows):
            uniforms = own_uniforms(noise, rows, call, x_t.device)
            scene = Scene(x_t, logits, t, h, rows, free, uniforms, self._survey(logits, rows, uniforms))
            x[rows] = self._navigate(scene, x[rows], probe)
        return x

    def _survey(self, logits: Tensor, rows: Tensor, uniforms: Callable[..., Tensor]) -> Survey | None:
        """One read of the navigated rows' logits for entropy, argmax, confidence and the refinement's draw."""
        if not kernels.on(logits, "draw"):
            return None
        u = uniforms(REFINE, (len(rows), logits.shape[1], 2))[..., 0] if self.refines else None
        return survey(logits, rows, u)

    def _navigate(self, scene: Scene, blind: Tensor, probe: bool) -> Tensor:
        """Algorithm 1 for the rows above τ; `blind` [n, L] are their blind jumps, where those were made."""
        best, energy = self._explore(scene) if self.explores else (blind, self._score(blind))
        self._count(navigated=len(best), jumped=total(best != scene.x_t[scene.rows]))
        if self.refines:
            best, energy = self._refine(scene, best, energy)
        if probe:
            self._probe(blind, best, energy)
        return best

    def _explore(self, scene: Scene) -> tuple[Tensor, Tensor | None]:
        """The sequence phase: the chosen candidate [n, L] of each row, and its energy [n]."""
        settings, rows, logits = self.settings, scene.rows, scene.logits
        entropy = None
        if settings.delta_t > 0:
            free, known = scene.free[rows] if self.learned else None, scene.survey
            entropy = mean_entropy(logits, rows, free) if known is None else mean_over(known.entropy, free)
        temperature = temperatures(entropy, len(rows), logits.shape[-1], settings, logits.device)
        u = scene.uniforms(CANDIDATES, (len(rows), settings.k, logits.shape[1], 2))
        energies: Tensor | None
        if settings.agree > 0:
            from tsdfm.distil.beyond.agree import until_agreed

            states, energies = until_agreed(
                partial(self._candidates, scene), self._energies, rows, temperature, u, settings
            )
        else:
            states = self._candidates(scene, scene.rows, temperature, u)
            energies = self._score(states)
        picks = scene.uniforms(PICK, (len(rows), 1 + settings.blocks) if settings.blocks else (len(rows),))
        pick = select(energies, picks[:, 0] if settings.blocks else picks, settings)
        self._count_candidates(states, energies, pick)
        each = torch.arange(len(rows), device=pick.device)
        best = states[each, pick]
        if settings.blocks:
            from tsdfm.distil.beyond.blocks import sweep

            return sweep(self._energies, states, best, picks[:, 1:], settings)
        return best, None if energies is None else energies[each, pick]

    def _candidates(self, scene: Scene, rows: Tensor, temperature: Tensor, u: Tensor) -> Tensor:
        s = scene
        return candidates(self.jump, s.x_t, s.logits, s.t, s.h, rows, temperature, u, s.free)

    def _refine(self, scene: Scene, best: Tensor, energy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The token phase and its safeguard."""
        s, u = scene, scene.uniforms(REFINE, (*best.shape, 2))
        refined = refine(s.x_t, best, s.logits, s.t, s.h, s.rows, u, s.free, self.schedule, self.settings, s.survey)
        after = self._score(refined)
        if energy is None or after is None:  # the random control: no questions asked
            self._count(refined=len(best), accepted=len(best), replaced=total(refined != best))
            return refined, None
        kept, accepted = safeguard(best, energy, refined, after, self.settings.epsilon)
        change = (after - energy).double()
        self._count(
            refined=len(best),
            accepted=total(accepted),
            replaced=total(refined != best),
            delta_accepted=torch.where(accepted, change, 0.0).sum(),
            delta_rejected=torch.where(accepted, 0.0, change).sum(),
        )
        return kept, torch.where(accepted, after, energy)

    def _score(self, states: Tensor) -> Tensor | None:
        """Energies of states […, L], or None where the control does without."""
        if self.compass is None or self.settings.selector == "random":
            return None
        flat = states.reshape(-1, states.shape[-1])
        if self.stats is not None:
            self.stats.scored += len(flat)
        self._count(scored=len(flat))
        if flat.is_cuda and len(flat) == 1:  # a batch of one would be compiled on its own
            return self.compass.energy(flat.repeat(2, 1))[:1].view(states.shape[:-1])
        return self.compass.energy(flat).view(states.shape[:-1])

    def _energies(self, states: Tensor) -> Tensor:
        """`_score` of a policy that has a compass."""
        found = self._score(states)
        assert found is not None  # settings refuse blocks and agreement without one
        return found

    def _probe(self, blind: Tensor, navigated: Tensor, energy: Tensor | None) -> None:
        """Score the blind jump besides; it is not counted as a call that the method needs."""
        if self.compass is None or self.stats is None:
            return
        found = self.compass.energy(navigated) if energy is None else energy
        before = self.compass.energy(blind)
        self.stats.add(probed=len(blind), energy_blind=before.double().sum(), energy_navigated=found.double().sum())

    def _count(self, **values: Tensor | int) -> None:
        if self.stats is not None:
            self.stats.add(**values)

    def _count_candidates(self, states: Tensor, energies: Tensor | None, pick: Tensor) -> None:
        if self.stats is None:
            return
        k = states.shape[1]
        picks = (pick[:, None] == torch.arange(k, device=pick.device)).sum(0, dtype=torch.float64)
        self._count(picks=picks, diversity=diversity(states).sum())
        if energies is not None:
            # only what was not drawn is infinite, and everything is drawn unless candidates may agree
            drawn = torch.where(energies.isfinite(), energies, -torch.inf) if self.settings.agree > 0 else energies
            self.stats.add(spread=total(drawn.amax(-1) - energies.amin(-1)))


class Sequence(Navigated):
    """The best of K candidates, as it is."""

    refines: ClassVar[bool] = False


class Token(Navigated):
    """One blind jump, refined."""

    explores: ClassVar[bool] = False


class SequenceToToken(Navigated):
    """The best of K candidates, refined: Navigate."""


POLICIES: dict[str, Any] = {"sequence": Sequence, "token": Token, "sequence-to-token": SequenceToToken}


def policy_from(
    name: str,
    jump: LeaveJump,
    *,
    settings: NavigateSettings | None = None,
    compass: Energy | None = None,
    held: Tensor | None = None,
    stats: Stats | None = None,
    learned: bool = False,
) -> Policy:
    """A policy from its name: `blind`, `sequence`, `token` or `sequence-to-token`."""
    if name == "blind":
        return Blind(jump, held)
    if name not in POLICIES:
        raise UserError(f'unknown policy "{name}": use blind, {", ".join(POLICIES)}')
    made: Policy = POLICIES[name](jump, held, settings or NavigateSettings(), compass, stats, learned)
    return made


def own_uniforms(noise: Noise, rows: Tensor, call: int, device: torch.device) -> Callable[..., Tensor]:
    """`(use, shape) → uniforms` of the navigated rows in their call number `call`: the same whatever else is drawn."""
    if not isinstance(noise, RowNoise):
        return lambda use, shape: uniform(noise, shape, device)
    numbers = noise.rows[rows.to(noise.rows.device)]
    made: dict[int, Tensor] = {}

    def draw(use: int, shape: tuple[int, ...]) -> Tensor:
        if use not in made:  # a use always has one shape
            own = RowNoise(noise.seed, numbers, noise.stream + STREAM)
            own.draws = call * USES + use
            made[use] = uniform(own, shape, device)
        return made[use]

    return draw


def diversity(states: Tensor) -> Tensor:
    """The share of positions at which two of K candidates [n, K, L] differ, over all pairs, [n]."""
    k = states.shape[1]
    if k == 1:
        return torch.zeros(len(states), dtype=torch.float64, device=states.device)
    differ = states[:, :, None] != states[:, None]  # every pair twice, and a candidate never differs from itself
    return differ.sum((1, 2, 3), dtype=torch.float64) / (k * (k - 1) * states.shape[2])


def total(values: Tensor) -> Tensor:
    """Σ in float64, a scalar."""
    return values.sum(dtype=torch.float64)


def near(value: Tensor, other: Tensor) -> Tensor:
    """`value` on the device of `other`; from pinned memory, as the host would else wait for the copy."""
    if other.is_cuda and not value.is_cuda and value.numel():
        value = value.pin_memory()
    return value.to(other.device, non_blocking=True)
