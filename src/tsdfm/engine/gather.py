"""Between tensors that may be sharded over processes and the whole ones a checkpoint holds.

A checkpoint never knows how many processes wrote it: process 0 gathers whole tensors one by one into CPU memory, and on
loading hands each process its part. Names are those of the plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tsdfm.engine.distributed import Processes
from tsdfm.engine.sharded import sharded_tensor

ReadTensor = Callable[[str], Tensor]


@torch.no_grad()
def gather(tensors: Mapping[str, Tensor], world: Processes) -> dict[str, Tensor]:
    """Whole copies, by name, in CPU memory on process 0; an empty dict elsewhere. Every process must call it."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if sharded_tensor(tensor) else tensor
        if world.main:
            copy = full.detach().to("cpu", copy=True)
            whole[name] = copy.contiguous()
    return whole


@torch.no_grad()
def scatter(tensors: Mapping[str, Tensor], read: ReadTensor | None, world: Processes) -> None:
    """Fill `tensors` in place with the whole ones that `read(name)` gives on process 0 (it may be None elsewhere)."""
    for name, tensor in tensors.items():
        whole = read(name) if read is not None else torch.empty(tensor.shape)
        whole = whole.to(tensor.device, tensor.dtype)
        if sharded_tensor(tensor):  # this sends each process its part of process 0's tensor
            from torch.distributed.tensor import distribute_tensor

            part = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(part.to_local())
            continue
        if world.size > 1:
            dist.broadcast(whole, src=0)
        tensor.copy_(whole)
