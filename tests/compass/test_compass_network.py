import dataclasses
import math

import pytest
import torch
from compass_parts import LENGTH, SHAPE, VOCAB, compass_spec, make_teacher, velocity_spec

from tsdfm.compass.model import Compass
from tsdfm.compass.network import AttentionPool, EnergyNet, start_from_teacher
from tsdfm.compass.settings import CompassNet
from tsdfm.errors import UserError
from tsdfm.nn import parameters


def make_net(seed=0, tokens=VOCAB):
    torch.manual_seed(seed)
    net = EnergyNet(SHAPE, tokens=tokens).double().eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return net


def some_tokens(batch=9):
    return torch.randint(0, VOCAB, (batch, LENGTH), generator=torch.Generator().manual_seed(3))


def test_energies_do_not_depend_on_the_batch():
    compass = Compass(compass_spec(), make_net())
    x = some_tokens()
    whole = compass.energy(x)
    assert whole.shape == (9,)
    assert whole.std() > 0.01
    alone = torch.cat([compass.energy(row[None]) for row in x])
    order = torch.tensor([4, 0, 8, 4])
    assert torch.allclose(whole, alone, rtol=0, atol=1e-12)
    assert torch.allclose(whole[order], compass.energy(x[order]), rtol=0, atol=1e-12)


def test_large_batches_are_scored_in_parts(monkeypatch):
    compass = Compass(compass_spec(), make_net())
    calls = []
    real = compass.net.forward
    monkeypatch.setattr(compass.net, "forward", lambda x: calls.append(len(x)) or real(x))
    whole = compass.energy(some_tokens())
    monkeypatch.setitem(__import__("tsdfm.compass.model", fromlist=["ROOM"]).ROOM, "cpu", 4 * LENGTH * 16 * 40)
    assert torch.allclose(compass.energy(some_tokens()), whole, rtol=0, atol=1e-12)
    assert calls == [9, 4, 4, 1]
    assert not whole.requires_grad
    with pytest.raises(UserError, match=r"\[B, L\]"):
        compass.energy(some_tokens()[0])


def test_slopes_are_what_single_tokens_change(monkeypatch):
    """s_i · e_v is ∂E by the share of token v at position i, for one-hot inputs, and s_i · (e_v − e_i) a difference."""
    net = make_net(tokens=VOCAB + 1).requires_grad_(False)
    compass, x = Compass(compass_spec("mask"), net), some_tokens()
    x[:, ::5] = VOCAB  # [MASK]
    shares = torch.nn.functional.one_hot(x, VOCAB + 1).double().requires_grad_()
    net.of(shares @ net.embedding.weight).sum().backward()
    slopes = compass.slopes(x)
    torch.testing.assert_close(slopes @ net.embedding.weight.T, shares.grad, rtol=1e-10, atol=1e-13)
    small, embedded = 1e-4, net.embedding(x)
    for i, v in ((0, 3), (7, VOCAB - 1)):
        way = torch.zeros_like(embedded)
        way[:, i] = net.embedding.weight[v] - embedded[:, i]
        rise = (net.of(embedded + small * way) - net.of(embedded - small * way)) / (2 * small)
        torch.testing.assert_close((slopes[:, i] * way[:, i]).sum(-1), rise, rtol=1e-5, atol=1e-8)
    monkeypatch.setitem(__import__("tsdfm.compass.model", fromlist=["ROOM"]).ROOM, "cpu", 4 * LENGTH * 16 * 40 * 2)
    calls, real = [], net.of
    monkeypatch.setattr(net, "of", lambda e: calls.append(len(e)) or real(e))
    torch.testing.assert_close(compass.slopes(x), slopes, rtol=0, atol=1e-12)
    assert calls == [4, 4, 1]


def test_the_pool_is_attention_from_a_learned_query():
    torch.manual_seed(0)
    pool = AttentionPool(SHAPE).double()
    torch.nn.init.normal_(pool.norm.weight)
    x = torch.randn(3, LENGTH, SHAPE.width, dtype=torch.float64)
    # the plain form: keys K y and values V y at every position, one query a head, with K'q the folded vector
    y = torch.nn.functional.layer_norm(x, (SHAPE.width,)) * pool.norm.weight
    mixed = []
    for head in range(SHAPE.heads):
        key = torch.randn(SHAPE.width, SHAPE.width, dtype=torch.float64)
        query = torch.linalg.solve(key.T, pool.query.weight[head])
        scores = (y @ key.T) @ query
        weights = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
        values = y @ pool.value[head]  # [B, L, E], mapped before mixing
        mixed.append((weights[..., None] * values).sum(1))
    expected = pool.head(torch.cat(mixed, -1))[:, 0]
    assert torch.allclose(pool(x), expected, atol=1e-9)


def test_every_weight_is_trained_and_position_matters():
    net = make_net()
    x = some_tokens(4)
    net(x).sum().backward()
    for name, p in net.named_parameters():
        assert p.grad.abs().sum() > 0, name
    swapped = x.clone()
    swapped[:, [3, 9]] = x[:, [9, 3]]
    assert (net(x) - net(swapped)).abs().min() > 1e-6


def test_a_fresh_network_learns_in_every_part_within_a_few_steps():
    torch.manual_seed(0)
    net = EnergyNet(SHAPE, tokens=VOCAB)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    optim = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, target = some_tokens(8), torch.linspace(-1, 1, 8)
    first = None
    for _ in range(60):
        loss = ((net(x) - target) ** 2).mean()
        first = first if first is not None else loss.item()
        optim.zero_grad()
        loss.backward()
        optim.step()
    assert loss.item() < 0.05 * first
    assert all((p - start[name]).abs().max() > 1e-4 for name, p in net.named_parameters())


def test_the_papers_size_and_the_presets():
    with torch.device("meta"):
        net = EnergyNet(CompassNet(preset="170m").shape(), tokens=50_257)
    assert (net.shape.depth, net.shape.width, net.shape.heads) == (6, 768, 12)
    assert 80e6 < parameters(net) < 95e6
    assert [CompassNet(preset=p).shape().depth for p in ("tiny", "small", "170m", "1b3")] == [2, 4, 6, 10]
    assert CompassNet(preset="tiny", depth=3).shape().depth == 3
    assert CompassNet().shape().dropout == 0.0


def test_bf16_scores_are_float32_where_it_counts():
    net = make_net().float()
    compass = Compass(compass_spec(), net, bf16=True)
    exact = Compass(compass_spec(), net).energy(some_tokens())
    got = compass.energy(some_tokens())
    assert got.dtype == torch.float32
    assert not torch.equal(got, got.bfloat16().float())  # finer than bf16 could say
    assert (got - exact).abs().max() < 0.05 * exact.abs().max()


def test_starting_from_the_teacher_takes_its_lower_layers():
    teacher = make_teacher()
    net = make_net(seed=7)
    start_from_teacher(net, teacher)
    assert torch.equal(net.embedding.weight, teacher.net.embedding.weight)
    for mine, theirs in zip(net.blocks, teacher.net.blocks, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    t = (torch.arange(64) + 0.5) / 64
    mean = torch.nn.functional.silu(teacher.net.time(t.double())).mean(0)
    assert torch.allclose(net.constant, mean, atol=1e-9)
    assert math.isfinite(net(some_tokens()).sum().item())
    with pytest.raises(UserError, match="init = teacher needs"):
        start_from_teacher(EnergyNet(CompassNet(preset="tiny").shape(), tokens=VOCAB), teacher)


@pytest.mark.parametrize("over", [{"vocab": 41}, {"tokenizer": "xyz"}, {"source": "mask"}])
def test_a_compass_refuses_what_it_does_not_belong_with(over):
    compass = Compass(compass_spec(), make_net())
    compass.match(velocity_spec(), "the student")
    compass.match(velocity_spec(length=99), "the student")
    with pytest.raises(UserError, match=f"the student has {next(iter(over))} .* do not belong together"):
        compass.match(velocity_spec(**over), "the student")


def test_places_come_from_the_teacher_too():
    placed = dataclasses.replace(SHAPE, positions=LENGTH)
    teacher = make_teacher(shape=placed)
    net = EnergyNet(placed, tokens=VOCAB).double()
    start_from_teacher(net, teacher)
    assert torch.equal(net.places.weight, teacher.net.places.weight)
    with pytest.raises(UserError, match=f"positions {LENGTH}"):
        start_from_teacher(EnergyNet(SHAPE, tokens=VOCAB), teacher)
