"""The finest packing of some models that fits into so many bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from safetensors.torch import save
from torch import Tensor

from tsdfm.store.bundle import BASE
from tsdfm.store.packed import pack, unpack

COARSEST, HALVINGS = 1.0, 10
FINEST = 2.0**-7  # below this the steps of nearly all rows are int8's

Weights = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Packed:
    """What the file of each role holds, and the weights of the teacher as they will be read."""

    stored: dict[str, dict[str, Tensor]]
    base: dict[str, Tensor] | None

    def unpacked(self, role: str) -> dict[str, Tensor]:
        """The float32 weights of a role, as a loader will have them."""
        return unpack(self.stored[role], self.base)

    def bytes(self) -> int:
        """Of all files together."""
        return sum(len(save(tensors)) for tensors in self.stored.values())


def fit(weights: Weights, kind: str, room: int) -> tuple[Packed, float]:
    """The packed weights by role, and c of coded ones: 0, or the least that needs no more than `room` bytes.

    c is found by halving its logarithm's range. What does not fit with the coarsest steps is returned too large.
    """
    whole = pack_all(weights, kind, 0.0)
    if kind != "coded" or whole.bytes() <= room:
        return whole, 0.0
    fine, coarse = FINEST, COARSEST
    found = pack_all(weights, kind, coarse)
    for _ in range(HALVINGS):
        middle = (fine * coarse) ** 0.5
        tried = pack_all(weights, kind, middle)
        if tried.bytes() <= room:
            coarse, found = middle, tried
        else:
            fine = middle
    return found, round(coarse, 6)


def pack_all(weights: Weights, kind: str, coarse: float) -> Packed:
    """All models packed; the others may be stored as differences from the teacher, as it is when it is read again."""
    teacher = pack(weights[BASE], kind, coarse=coarse) if BASE in weights else {}
    base = unpack(teacher) if teacher else None
    others = {role: pack(given, kind, coarse=coarse, base=base) for role, given in weights.items() if role != BASE}
    return Packed({role: others.get(role, teacher) for role in weights}, base)
