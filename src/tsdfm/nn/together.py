"""Networks that write texts on a GPU with fewer kernels: the condition of all blocks at once, GELU inside a product.

At batch 1 the small products of the condition, some forty kernels a pass, take longer to launch and to end than to
multiply. Training knows nothing of this: copies are changed, which share their weights with the network they are of.

Shapes: B batch, C condition width, N blocks and the end, K modulations of a block (6·D).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tsdfm.nn.layers import Block

Net = TypeVar("Net", bound=nn.Module)


class Together(nn.Module):
    """What a condition tells all blocks and the end, [B, C] ([B, 2C] with fusers) → [N, B, K], by two products.

    Weights are put side by side in every pass, so that they are never old; `settle` does it once and for all.
    """

    kept: tuple[Tensor, ...] = ()

    def __init__(self, fusers: Iterable[nn.Module], maps: Iterable[nn.Linear]) -> None:
        super().__init__()
        linear = [layer for fuser in fusers for layer in fuser.modules() if isinstance(layer, nn.Linear)]
        self.fusers, self.maps = nn.ModuleList(linear), nn.ModuleList(maps)

    def weights(self) -> tuple[Tensor, ...]:
        """[N, C, K] and [N, 1, K] of the maps, zero beyond a narrower one, [N·C, 2C] and [N·C] of the fusers."""
        maps, fusers = (
            [[getattr(layer, name) for layer in layers] for name in ("weight", "bias")]
            for layers in (self.maps, self.fusers)
        )
        weight, bias = (pad_sequence(each, batch_first=True) for each in maps)
        return weight.mT, bias[:, None], *(torch.cat(each) for each in fusers if each)

    @torch.no_grad()
    def settle(self, dtype: torch.dtype) -> None:
        """Keep the weights as they are now, side by side, instead of the layers."""
        self.kept = tuple(each.to(dtype) for each in self.weights())
        self.fusers, self.maps = nn.ModuleList(), nn.ModuleList()

    def forward(self, cond: Tensor) -> Tensor:
        """SiLU(fuser(cond)) through the map of each."""
        weight, bias, *fusers = self.kept or self.weights()
        if fusers:
            cond = F.silu(F.linear(cond, *fusers)).view(len(cond), len(weight), -1).transpose(0, 1)
        return torch.baddbmm(bias, cond.expand(len(weight), -1, -1), weight)


class Part(nn.Module):
    """What one of them is told: [N, B, K] → [B, columns]."""

    def __init__(self, number: int, columns: int) -> None:
        super().__init__()
        self.number, self.columns = number, columns

    def forward(self, told: Tensor) -> Tensor:
        """A view."""
        return told[self.number, :, : self.columns]


class GeluLinear(nn.Linear):
    """GELU(W x + b) in bf16, […, C] → […, D]: one kernel on a GPU, whose GELU is the tanh form.

    Without gradients. On a CPU torch has the exact GELU here, so it is not for sampling there.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Cast here: autocast does not know this product on a GPU."""
        weight, bias, rows = (x.to(torch.bfloat16) for x in (self.weight, self.bias, input.flatten(0, -2)))
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True).view(*input.shape[:-1], -1)


def together(net: Net) -> Net:
    """The same network on the same weights, whose blocks are told together. One that is told nothing is itself."""
    if not isinstance(getattr(net, "spread", None), nn.Identity):
        return net
    made = same_weights(net)
    ends = [*made.blocks, made]
    made.spread = Together([end.fuser for end in ends], [end.adaln for end in ends])
    for number, end in enumerate(ends):
        end.fuser, end.adaln = nn.Identity(), Part(number, end.adaln.out_features)
    return cast(Net, made)


def gelu_inside(net: Net) -> Net:
    """The same network on the same weights, for passes in bf16 on a GPU. Without the MLP of a `Block` it is itself."""
    if not any(isinstance(block, Block) and isinstance(block.mlp[1], nn.GELU) for block in net.modules()):
        return net
    made = same_weights(net)
    for block in made.modules():
        if isinstance(block, Block):
            block.mlp[0], block.mlp[1] = on_weights(GeluLinear, block.mlp[0]), nn.Identity()
    return cast(Net, made)


def same_weights(net: nn.Module) -> Any:
    """A copy whose parts may be replaced, on the very same weights."""
    return copy.deepcopy(net, {id(x): x for x in (*net.parameters(), *net.buffers())})


def on_weights(kind: type[nn.Linear], layer: Any) -> nn.Linear:
    """A linear layer of another kind on the weights of `layer`."""
    made = kind(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)
