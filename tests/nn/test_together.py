"""The condition of all blocks at once, and GELU inside a product, against the networks as they are written."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tiny_nets import stir, tiny_net
from torch import Tensor, nn

from tsdfm.nn.decoder import Decoder, DecoderShape, told_decoder
from tsdfm.nn.network import TokenNet
from tsdfm.nn.together import GeluLinear, Part, Together, gelu_inside, on_weights, together

F64 = torch.float64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = DecoderShape(width=16, depth=2, heads=2, kv_heads=1, head=8, hidden=24)


def net_of(kind: str, step_size: bool) -> TokenNet:
    """A network in float64 none of whose weights is zero."""
    made: TokenNet = tiny_net(step_size=step_size)
    if kind == "decoder":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = Decoder(told_decoder(SHAPE, told=True), vocab=13, tokens=14, step_size=step_size)
    stir(made).to(F64).eval().requires_grad_(False)
    return made


def inputs(step_size: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    t = torch.tensor([0.1, 0.5, 0.9], dtype=F64)
    return torch.arange(18).view(3, 6) % 13, t, t / 4 if step_size else None


def told(net: TokenNet, t: Tensor, h: Tensor | None) -> list[Tensor]:
    """What each block and the end is told."""
    cond = net.condition(t, h)
    return [end.adaln(end.fuser(cond)) for end in (*net.blocks, net)]


@pytest.mark.parametrize("step_size", [False, True])
@pytest.mark.parametrize("kind", ["ddit", "decoder"])
def test_told_together_is_told_one_by_one(kind: str, step_size: bool) -> None:
    """Also after the weights have changed, in place and by loading, and settled."""
    net, (x, *times) = net_of(kind, step_size), inputs(step_size)
    made, seen = together(net), list[Tensor]()
    assert isinstance(made.spread, Together)
    changes = [
        lambda: None,
        lambda: stir(net, seed=2),
        lambda: torch._foreach_mul_([*net.parameters()], 1.1),
        lambda: net.load_state_dict(stir(net_of(kind, step_size), seed=3).state_dict()),
    ]
    for change in changes:
        change()
        for mine, own in zip(told(made, *times), told(net, *times), strict=True):
            torch.testing.assert_close(mine, own, rtol=1e-12, atol=1e-12)
        seen.append(net(x, *times))
        torch.testing.assert_close(made(x, *times), seen[-1], rtol=1e-12, atol=1e-12)
    assert all((a - b).abs().max() > 0.01 for a, b in pairwise(seen))
    made.spread.settle(F64)
    for mine, own in zip(told(made, *times), told(net, *times), strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-12, atol=1e-12)
    assert not [*made.spread.parameters()]


@pytest.mark.parametrize("kind", ["ddit", "decoder"])
def test_the_network_itself_is_left_alone(kind: str) -> None:
    net = net_of(kind, step_size=True)
    names, ids = [*net.state_dict()], {id(x) for x in net.parameters()}
    made = gelu_inside(together(net))
    assert {id(x) for x in made.parameters()} == ids
    assert [*net.state_dict()] == names
    assert isinstance(net.spread, nn.Identity)
    assert not [part for part in net.modules() if isinstance(part, Together | Part | GeluLinear)]
    assert gelu_inside(together(made)) is made
    assert (gelu_inside(net) is net) == (kind == "decoder")


def test_a_decoder_that_is_told_nothing_is_itself() -> None:
    net = Decoder(SHAPE, vocab=13, tokens=14)
    assert gelu_inside(together(net)) is net


def test_gelu_inside_a_product() -> None:
    """To the last bits of bf16, and the same when compiled."""
    layer = stir(nn.Linear(32, 64)).to(DEVICE).requires_grad_(False)
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    weight, bias, rows = (each.bfloat16().double() for each in (layer.weight, layer.bias, x))
    want = F.gelu(F.linear(rows, weight, bias), approximate="tanh")
    made = on_weights(GeluLinear, layer)
    assert made(x).dtype == torch.bfloat16
    torch.testing.assert_close(made(x).double(), want, rtol=2**-6, atol=0.02)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), made(x))


@pytest.mark.parametrize("step_size", [False, True])
def test_a_compiler_takes_all_of_it(step_size: bool) -> None:
    net, (x, *times) = gelu_inside(together(net_of("ddit", step_size).float())), inputs(step_size)
    given = [x, *(each if each is None else each.float() for each in times)]
    net.spread.settle(torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(net.hidden, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*given), net.hidden(*given), rtol=0.05, atol=0.05)
