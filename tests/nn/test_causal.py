"""The autoregressive network: causal, and the same with and without its cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tsdfm.nn.causal import CausalNet, CausalSpec
from tsdfm.nn.settings import NetSettings
from tsdfm.settings import build


def net(tied: bool = True) -> CausalNet:
    torch.manual_seed(0)
    made = CausalNet(NetSettings(width=32, depth=3, heads=4, dropout=0.0).shape(), vocab=23, tied=tied).double().eval()
    for weight in made.parameters():
        weight.data.mul_(3.0)
    return made


def tokens(batch: int = 3, length: int = 12) -> Tensor:
    return torch.randint(23, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
def test_a_position_depends_on_the_past_alone(tied: bool) -> None:
    model, x = net(tied), tokens()
    before = model(x)
    assert before.shape == (3, 12, 23)
    x[:, 7] = (x[:, 7] + 1) % 23
    after = model(x)
    assert torch.equal(before[:, :7], after[:, :7])
    assert ((before[:, 7:] - after[:, 7:]).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("cuts", [[12], [1] * 12, [5, 1, 1, 3, 2]])
def test_cached_logits_are_the_plain_ones(cuts: list[int]) -> None:
    """Whatever is read at once, and with room to spare in the cache."""
    model, x = net(), tokens()
    full = model(x)
    cache = model.cache(3, 16, torch.float64)
    at = 0
    for size in cuts:
        found = model.step(x[:, at : at + size], torch.arange(at, at + size), cache)
        at += size
        torch.testing.assert_close(found, full[:, at - 1], rtol=1e-9, atol=1e-9)


def test_the_cache_stays_where_it_is() -> None:
    """Fixed addresses and shapes: what a captured graph needs."""
    model, x = net(), tokens()
    cache = model.cache(3, 12, torch.float64)
    places = cache.keys.data_ptr(), cache.values.data_ptr()
    model.step(x[:, :4], torch.arange(4), cache)
    model.step(x[:, 4:5], torch.arange(4, 5), cache)
    assert (cache.keys.data_ptr(), cache.values.data_ptr()) == places
    assert cache.room == 12
    assert cache.keys[:, :, :, 5:].abs().sum() == 0
    assert (cache.keys[:, :, :, :5].abs().sum(-1) > 0).all()


def test_recomputing_activations_changes_no_gradient() -> None:
    from dataclasses import replace

    x, grads = tokens(), []
    for again in (False, True):
        model = net()
        model.shape = replace(model.shape, checkpoint=again)
        model(x).logsumexp(-1).sum().backward()
        assert model.embedding.weight.grad is not None
        grads.append(model.embedding.weight.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_a_tied_head_is_the_embedding_and_is_saved_once() -> None:
    shape = NetSettings(width=32, depth=1, heads=2).shape()
    spec = CausalSpec(shape=shape, vocab=23, tied=True, length=8, anchor=1, tokenizer="x")
    assert build(CausalSpec, spec.plain()) == spec
    assert not [name for name in spec.network().state_dict() if "head" in name]
    untied = CausalNet(shape, vocab=23, tied=False).state_dict()
    assert untied["head.weight"].shape == (23, 32)
