"""The output head with its columns padded to a multiple of 64.

50 257 columns make every row of the logits start at an odd address, and the matrix products that write or read them
fall back to slow paths. The padded weight is made once a step, where the head is cast to the dtype of the products
anyway; its extra rows are zero, and nobody looks at the extra columns of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm import kernels

MULTIPLE = 64


@dataclass(frozen=True)
class Head:
    """weight [V', D] and bias [V'] with V' ≥ `columns` = V."""

    weight: Tensor
    bias: Tensor | None
    columns: int

    def whole(self, hidden: Tensor) -> Tensor:
        """Logits […, V'] in the weight's dtype, the extra columns included."""
        return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits […, V], a view whose rows start at aligned addresses."""
        return self.whole(hidden)[..., : self.columns]


@torch.no_grad()
def padded(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Head:
    """A copy of a head in `dtype`, padded."""
    columns = weight.shape[0]
    more = -columns % MULTIPLE
    wide = torch.empty(columns + more, weight.shape[1], dtype=dtype, device=weight.device)
    wide[:columns] = weight
    wide[columns:] = 0
    long = None
    if bias is not None:
        long = torch.zeros(columns + more, dtype=dtype, device=weight.device)
        long[:columns] = bias
    return Head(wide, long, columns)


class SettledHead(nn.Module):
    """A head of a network that does not change any more: padded once, in the dtype of the products."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        made = padded(head.weight, head.bias, dtype)
        self.columns = made.columns
        self.register_buffer("weight", made.weight, persistent=False)
        self.register_buffer("bias", made.bias, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits […, V] of hidden states […, D]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return Head(self.weight, self.bias, self.columns)(hidden)


def quick_logits(hidden: Tensor, head: nn.Linear) -> Tensor:
    """head(hidden) […, V] without gradients: by the padded head where kernels run, else by the head itself.

    The padded copy is made anew for every call. Nothing tells reliably whether a weight has changed since the last one:
    torch's version counters do not see the in-place updates of lists of tensors on a GPU, which is how averages move.
    (Its type is what a network's `then` takes.)
    """
    if torch.is_grad_enabled() or not kernels.on(hidden, "head") or type(head.weight) is not nn.Parameter:
        out: Tensor = head(hidden)
        return out
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else head.weight.dtype
    with torch.autocast(hidden.device.type, enabled=False):
        return padded(head.weight, head.bias, dtype)(hidden)
