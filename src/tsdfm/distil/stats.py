"""What navigation did: sums on the device, which nobody waits for until a line is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

PREFIX = "nav/"
SUMS = (
    "navigated",  # midpoints above τ
    "refined",  # of those, midpoints with a token phase
    "accepted",  # of those, refinements the safeguard let through
    "jumped",  # tokens the selected candidate changed
    "replaced",  # tokens the refinement changed in it, accepted or not
    "delta_accepted",  # E(refined) − E(selected), where accepted
    "delta_rejected",  # and where not
    "diversity",  # share of positions at which two candidates differ
    "spread",  # largest less smallest energy of the candidates
    "scored",  # states the compass scored
    "probed",  # midpoints at which a blind jump was scored besides
    "energy_blind",  # its energy
    "energy_navigated",  # and the navigated state's
)


@dataclass
class Stats:
    """A collector. `probe` asks policies to score a blind jump from the same states, at one more compass call."""

    candidates: int
    probe: bool = False
    midpoints: int = 0
    scored: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _counts: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, **values: Tensor | int) -> None:
        """Add sums over rows, by the names above; `picks` is [K]. Whole numbers stay on the host until read."""
        for name, value in values.items():
            if name not in SUMS and name != "picks":
                raise KeyError(name)
            if isinstance(value, int):
                self._counts[name] = self._counts.get(name, 0) + value
                continue
            before = self._sums.get(name)
            self._sums[name] = value.to(torch.float64) if before is None else before + value.to(before.device)

    def packed(self, device: torch.device) -> Tensor:
        """Every sum in one vector [sums + K] on the device: one operation instead of one for each of some twenty."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        picks = self._sums["picks"].to(device) if "picks" in self._sums else zero.expand(self.candidates)
        return torch.cat([torch.stack([self._sum(name, zero) for name in SUMS]), picks])

    def take(self, packed: Tensor) -> None:
        """Add what another collector has packed."""
        self.add(**dict(zip(SUMS, packed.unbind(), strict=False)), picks=packed[len(SUMS) :])

    def mean(self, midpoints: float, device: torch.device) -> dict[str, Tensor]:
        """Every sum over so many midpoints, scalars on the device: always the same names, 0 where nothing happened."""
        means = self.packed(device) / max(midpoints, 1e-300)
        names = [*SUMS, *(f"pick_{c + 1}" for c in range(self.candidates))]
        return dict(zip((PREFIX + name for name in names), means.unbind(), strict=True))

    def _sum(self, name: str, zero: Tensor) -> Tensor:
        """A sum with what was counted on the host; a `zero` tells where it shall lie."""
        here, count = self._sums.get(name), self._counts.get(name, 0)
        if here is None:
            return zero + count if count else zero
        here = here.to(zero.device)
        return here + count if count else here

    def summary(self) -> dict[str, float]:
        """Shares and means in plain numbers, of all that was added. Waits for the device."""
        return readable({name: float(x) for name, x in self.mean(max(self.midpoints, 1), torch.device("cpu")).items()})


def readable(values: Mapping[str, float]) -> dict[str, float]:
    """Means per midpoint as shares and means of what they are about; other values pass through.

    navigated   share of midpoints                  accept          share of refinements accepted
    jumped, replaced   tokens a navigated midpoint  delta_e_…       change of energy where accepted, rejected
    diversity   share of positions                  spread          of the candidates' energies
    pick_c      share of the picks                  energy_…        of blind and of navigated states, where probed
    """
    raw = {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX)}
    out = {name: value for name, value in values.items() if not name.startswith(PREFIX)}
    if not raw:
        return out
    navigated, refined, accepted = raw["navigated"], raw["refined"], raw["accepted"]
    ratios = {"navigated": (navigated, 1.0), "accept": (accepted, refined), "replaced": (raw["replaced"], refined)}
    ratios |= {name: (raw[name], navigated) for name in ("jumped", "diversity", "spread", "scored")}
    ratios |= {name: (value, navigated) for name, value in raw.items() if name.startswith("pick_")}
    ratios["delta_e_accepted"] = (raw["delta_accepted"], accepted)
    ratios["delta_e_rejected"] = (raw["delta_rejected"], refined - accepted)
    ratios |= {name: (raw[name], raw["probed"]) for name in ("energy_blind", "energy_navigated")}
    tiny = 1e-12  # sums that went through means come back with rounding
    return out | {PREFIX + name: part / whole for name, (part, whole) in ratios.items() if whole > tiny}
