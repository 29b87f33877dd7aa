"""The texts that the student is writing: each has a place in the batch, a number of passes, and its state.

A step moves every text on by one pass, with the x that the student drew there anyway: they cost nothing. Numbers of
passes are kept on the host, states on the device; all are part of the checkpoint. With several processes each has its
own places, and a checkpoint has them all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tsdfm.distil.midpoint import near
from tsdfm.engine.distributed import Processes
from tsdfm.flow import RowNoise, Schedule

NEVER = -1  # j of a place whose first text has not begun; k = 0: a text shall begin


class Running:
    """States [batch, L], and for every place k and the index j of its next pass [batch].

    A text that goes on keeps the prompt it began with: where it is given, its state holds ~token, below 0.
    """

    def __init__(self, batch: int, length: int, schedule: Schedule) -> None:
        self.schedule = schedule
        self.k = torch.zeros(batch, dtype=torch.int64)
        self.j = torch.full((batch,), NEVER)
        self.z = torch.zeros(batch, length, dtype=torch.int64)

    def bind(self, world: Processes) -> None:
        """Move to the device."""
        self.world, self.z = world, self.z.to(world.device)

    def next(self, places: Tensor, k: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k [n] and j [n] of the texts at `places` [n], and which go on; the others begin with what was drawn for them.

        The first text of a place begins anywhere, so that not all end in the same step; later ones at j = 0.
        """
        goes = self.k[places] > 0
        first = self.j[places] == NEVER
        j = torch.where(goes, self.j[places], torch.where(first, j, 0))
        return torch.where(goes, self.k[places], k), j, goes

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The states [n, L] at `places` [n] on the device, and what is given of them."""
        z = self.z[places]
        return torch.where(z < 0, ~z, z), z < 0

    def go_on(
        self,
        places: Tensor,
        k: Tensor,
        j: Tensor,
        x: Tensor,
        z: Tensor,
        t: Tensor,
        h: Tensor,
        noise: RowNoise,
        given: Tensor | None = None,
    ) -> None:
        """One pass on from states z [n, L] with draws x: a position becomes x with its chance to arrive until t + h.

        `places`, k and j [n] lie on the host, the rest on the device. A text that has ended makes room.
        """
        arrives = 1.0 - self.schedule.survival(t, t + h)[:, None]
        moved = torch.where(noise.uniform(z.shape) < arrives, x, z)
        self.z[near(places, z)] = moved if given is None else torch.where(given, ~moved, moved)
        done = j + 1 >= k
        self.k[places] = torch.where(done, 0, k)
        self.j[places] = torch.where(done, 0, j + 1)

    def begin_anew(self) -> None:
        """Give up all texts: at every place a new one begins."""
        self.k.zero_()
        self.j.zero_()

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds: every process's places."""
        held = {"k": self.k, "j": self.j, "z": self.z}
        if self.world.size > 1:
            size = len(self.k) // self.world.size
            mine = slice(self.world.rank * size, (self.world.rank + 1) * size)
            for tensor in held.values():
                whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
                whole[mine] = tensor[mine].cpu()
                dist.all_reduce(whole, group=self.world.control)
                tensor.copy_(whole)
        return {"texts": held}
