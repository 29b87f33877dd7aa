"""The velocity network: its size, its zero start, its conditioning, and that it compiles once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tiny_nets import VOCAB, stir, tiny_net, tiny_shape
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode

from tsdfm.errors import UserError
from tsdfm.nn import PRESETS, DDiT, NetSettings, flops_per_token, parameters

both = pytest.mark.parametrize("step_size", [False, True])


def inputs(batch: int = 3, length: int = 7, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    x_t = torch.randint(0, VOCAB + 1, (batch, length), generator=made)
    return x_t, torch.rand(batch, generator=made), torch.rand(batch, generator=made)


def call(net: torch.nn.Module, x_t: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return net(x_t, t, h) if net.step_size else net(x_t, t)


def count_by_hand(width: int, depth: int, cond: int, vocab: int, tokens: int, step_size: bool) -> int:
    """The sheet of facts, line by line."""
    linear = lambda inside, outside: inside * outside + outside  # noqa: E731
    embedder = linear(256, cond) + linear(cond, cond)
    fuser = linear(2 * cond, cond) if step_size else 0
    attention = width * 3 * width + width * width
    mlp = linear(width, 4 * width) + linear(4 * width, width)
    block = attention + mlp + 2 * width + linear(cond, 6 * width) + fuser
    head = width + linear(cond, 2 * width) + fuser + linear(width, vocab)
    condition = 2 * embedder + linear(2 * cond, 2 * cond) if step_size else embedder
    return tokens * width + condition + depth * block + head


@pytest.mark.parametrize(("preset", "width", "depth", "cond"), [("170m", 768, 12, 128), ("1b3", 2048, 21, 256)])
@both
def test_published_sizes(preset: str, width: int, depth: int, cond: int, step_size: bool) -> None:
    shape = NetSettings(preset=preset).shape()
    assert (shape.width, shape.depth, shape.heads, shape.cond) == (width, depth, width // 64, cond)
    assert (shape.hidden, shape.dropout) == (4 * width, 0.1)
    with torch.device("meta"):
        net = DDiT(shape, vocab=50257, tokens=50257, step_size=step_size)
    assert parameters(net) == count_by_hand(width, depth, cond, 50257, 50257, step_size)
    millions = parameters(net) / 1e6
    if preset == "1b3":
        assert parameters(net) == (1_333_956_689 if step_size else 1_330_673_233)  # as the public files have
    else:
        assert round(millions, 1) == (170.2 if step_size else 169.6)


def test_presets_and_refusals() -> None:
    for preset in PRESETS:
        shape = NetSettings(preset=preset).shape()
        assert shape.width == PRESETS[preset]
        assert shape.width % shape.heads == 0
    assert NetSettings(width=64, depth=3, heads=4, mlp_ratio=2).shape().hidden == 128
    with pytest.raises(UserError, match="did you mean '170m'"):
        NetSettings(preset="170").shape()
    with pytest.raises(UserError, match="5 heads of an even size"):
        NetSettings(width=64, heads=5).shape()
    with pytest.raises(UserError, match="even size"):
        NetSettings(width=6, heads=2).shape()
    for wrong in ({"width": -128}, {"depth": 0}, {"cond": 0}, {"heads": -1}, {"mlp_ratio": 0}):
        with pytest.raises(UserError, match="must be from 1 to"):
            NetSettings(**wrong).shape()
    for dropout in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="dropout"):
            NetSettings(dropout=dropout).shape()


@both
def test_a_fresh_network_knows_nothing(step_size: bool) -> None:
    net = tiny_net(step_size=step_size)
    assert not call(net, *inputs()).any()
    torch.nn.init.normal_(net.head.weight)  # with a head, the fresh blocks are the identity between embedding and norm
    x_t, t, h = inputs()
    raw = net.embedding.weight[x_t]
    normed = (raw - raw.mean(-1, keepdim=True)) / (raw.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(call(net, x_t, t, h), normed @ net.head.weight.T)


@both
def test_a_fresh_block_is_the_identity(step_size: bool) -> None:
    net = tiny_net(step_size=step_size, dropout=0.5).train()
    x = torch.randn(2, 5, 16)
    cond = torch.randn(2, 16 if step_size else 8)
    assert torch.equal(net.blocks[0](x, cond, *net.rotary(5)), x)
    assert not torch.equal(stir(net).blocks[0](x, cond, *net.rotary(5)), x)


@both
def test_the_mask_has_an_embedding_and_no_column(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size))
    assert net.embedding.num_embeddings == VOCAB + 1
    masks = torch.full((1, 4), VOCAB)
    logits = call(net, masks, torch.zeros(1), torch.ones(1))
    assert logits.shape == (1, 4, VOCAB)
    assert net.head.weight is not net.embedding.weight


@both
def test_every_input_counts(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size)).double().eval()
    x_t, t, h = inputs()
    base = call(net, x_t, t, h)
    other = x_t.clone()
    other[:, 2] = (other[:, 2] + 1) % VOCAB
    moved = (call(net, other, t, h) - base).abs().amax(-1)
    assert (moved > 1e-6).all()  # attention looks both ways: one token reaches every position
    assert ((call(net, x_t, t * 0.5, h) - base).abs().amax(-1) > 1e-6).all()
    if step_size:
        assert ((call(net, x_t, t, h * 0.5) - base).abs().amax(-1) > 1e-6).all()
        swapped = call(net, x_t, h, t)  # t and h have embedders of their own
        assert ((swapped - base).abs().amax(-1) > 1e-6).all()


def test_h_is_required_or_refused() -> None:
    x_t, t, h = inputs()
    with pytest.raises(ValueError, match="needs h"):
        tiny_net(step_size=True)(x_t, t)
    with pytest.raises(ValueError, match="takes none"):
        tiny_net()(x_t, t, h)


@both
def test_gradients_reach_every_weight(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size))
    x_t = torch.arange(VOCAB + 1)[None].repeat(2, 1)  # every token, so every row of the embedding
    logits = call(net, x_t, torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.5]))
    logits.logsumexp(-1).sum().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().amax() > 0, name
    assert (net.embedding.weight.grad.abs().amax(-1) > 0).all()


@both
def test_rows_do_not_see_each_other(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size)).double().eval()
    x_t, t, h = inputs(batch=5)
    whole = call(net, x_t, t, h)
    for i in range(5):
        alone = call(net, x_t[i : i + 1], t[i : i + 1], h[i : i + 1])
        torch.testing.assert_close(alone[0], whole[i], rtol=1e-12, atol=1e-12)
    turned = call(net, x_t.flip(0), t.flip(0), h.flip(0))
    torch.testing.assert_close(turned.flip(0), whole, rtol=1e-12, atol=1e-12)


@both
def test_activation_checkpointing_changes_nothing(step_size: bool) -> None:
    """Dropout is on: the recomputed forward pass must drop the same units."""
    results = []
    for checkpoint in (False, True):
        net = stir(tiny_net(step_size=step_size, dropout=0.3, checkpoint=checkpoint)).train()
        torch.manual_seed(5)
        loss = call(net, *inputs()).logsumexp(-1).mean()
        loss.backward()
        results.append((loss.detach(), [weight.grad for weight in net.parameters()]))
    (plain, gradients), (again, recomputed) = results
    assert torch.equal(plain, again)
    assert all(torch.equal(a, b) for a, b in zip(gradients, recomputed, strict=True))


def test_activation_checkpointing_recomputes() -> None:
    """Each block runs twice with gradients, once without."""
    net = stir(tiny_net(checkpoint=True))
    calls = []
    net.blocks[0].norm_1.register_forward_hook(lambda *_: calls.append(1))
    call(net, *inputs()).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        call(net, *inputs())
    assert len(calls) == 3


@both
def test_one_graph_for_every_batch_and_length(step_size: bool) -> None:
    net, counter = stir(tiny_net(step_size=step_size)), CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=counter, dynamic=True, fullgraph=True)
    for batch, length in ((2, 6), (3, 6), (2, 9), (5, 17), (4, 4)):
        given = inputs(batch, length)
        torch.testing.assert_close(call(compiled, *given), call(net, *given))
    assert counter.frame_count == 1


def test_a_student_starts_from_its_teacher() -> None:
    teacher, student = stir(tiny_net()), tiny_net(step_size=True)
    fresh = {name: weight.clone() for name, weight in student.state_dict().items()}
    found = student.load_state_dict(teacher.state_dict(), strict=False)
    assert not found.unexpected_keys  # every weight of the teacher has its place
    new = {name for name in fresh if name.startswith(("step.", "join.", "fuser.")) or ".fuser." in name}
    assert set(found.missing_keys) == new
    after = student.state_dict()
    for name, weight in teacher.state_dict().items():
        assert torch.equal(after[name], weight), name
    assert all(torch.equal(after[name], fresh[name]) for name in new)
    assert all(fresh[name].abs().amax() > 0 for name in new)  # random, as torch starts linear layers: not zero


@both
def test_dropout_only_while_training(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size, dropout=0.5))
    given = inputs()
    assert not torch.equal(call(net.train(), *given), call(net, *given))
    assert torch.equal(call(net.eval(), *given), call(net, *given))


@pytest.mark.parametrize(("width", "length"), list(itertools.product((16, 32), (8, 24))))
def test_flops_against_torch_s_counter(width: int, length: int) -> None:
    """Matrix products over positions, counted by torch; what is done once a sequence (the condition) is taken off."""
    shape = tiny_shape(width=width)
    net = DDiT(shape, vocab=VOCAB, tokens=VOCAB)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(torch.zeros(1, length, dtype=torch.long), torch.zeros(1))
    condition = 2 * (256 * 8 + 8 * 8 + shape.depth * 8 * 6 * width + 8 * 2 * width)
    assert counter.get_total_flops() - condition == flops_per_token(shape, VOCAB, length) * length


def by_hand(net: DDiT, x_t: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """The network as the sheet of facts tells it, from its weights alone."""
    w = dict(net.named_parameters())
    silu = lambda x: x / (1 + torch.exp(-x))  # noqa: E731
    gelu = lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))  # noqa: E731
    linear = lambda name, x: x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)  # noqa: E731

    def embed(name: str, value: torch.Tensor) -> torch.Tensor:
        angles = value[:, None] * net.time.rates
        return linear(f"{name}.mlp.2", silu(linear(f"{name}.mlp.0", torch.cat([angles.cos(), angles.sin()], -1))))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]

    def parts(place: str, count: int) -> list[torch.Tensor]:
        own = silu(linear(f"{place}fuser.0", cond)) if net.step_size else cond
        return [part[:, None] for part in linear(f"{place}adaln", own).chunk(count, -1)]

    cond = silu(
        linear("join", torch.cat([embed("time", t), embed("step", h)], -1)) if net.step_size else embed("time", t)
    )
    x = w["embedding.weight"][x_t]
    for i, block in enumerate(net.blocks):
        place = f"blocks.{i}."
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = parts(place, 6)
        inside = norm(f"{place}norm_1", x) * (1 + scale_1) + shift_1
        x = x + gate_1 * block.attend(inside, *net.rotary(x_t.shape[1]))  # by hand in test_layers
        inside = norm(f"{place}norm_2", x) * (1 + scale_2) + shift_2
        x = x + gate_2 * linear(f"{place}mlp.2", gelu(linear(f"{place}mlp.0", inside)))
    shift, scale = parts("", 2)
    return linear("head", norm("norm", x) * (1 + scale) + shift)


@both
def test_the_whole_network_by_hand(step_size: bool) -> None:
    net = stir(tiny_net(step_size=step_size), size=0.5).double().eval()
    x_t, t, h = inputs()
    given = (x_t, t.double(), h.double())
    torch.testing.assert_close(call(net, *given), by_hand(net, *given), rtol=1e-9, atol=1e-9)


def test_places_are_told_apart_only_where_they_are_learned() -> None:
    """Rotary positions are relative: a row of equal tokens looks the same from every place."""
    x_t, t = torch.zeros(1, 6, dtype=torch.int64), torch.full((1,), 0.5, dtype=torch.float64)
    plain, placed = (stir(tiny_net(positions=positions).double().eval()) for positions in (0, 6))
    assert torch.allclose(plain(x_t, t), plain(x_t, t)[:, :1].expand(-1, 6, -1))
    spread = placed(x_t, t).std(dim=1)
    assert spread.min() > 1e-3
    assert parameters(placed) - parameters(plain) == 6 * tiny_shape().width
    assert placed(x_t[:, :4], t).shape[1] == 4  # shorter rows are fine
    with pytest.raises(UserError, match=r"net\.positions is 6"):
        placed(torch.zeros(1, 7, dtype=torch.int64), t)
    with pytest.raises(UserError, match="positions must be from 0"):
        NetSettings(positions=-1).shape()


def test_a_law_over_tokens_is_shown_as_its_mean_embedding() -> None:
    """Some tokens one by one and the rest alike, against a whole law; one token with all the weight is that token."""
    net = stir(tiny_net()).double()
    x_t, t, _ = inputs()
    x_t = x_t.clamp(max=VOCAB - 1)
    few = torch.stack([x_t, (x_t + 1) % VOCAB], -1)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).expand(*x_t.shape, 3)
    law = torch.full((*x_t.shape, VOCAB), 0.3 / VOCAB, dtype=torch.float64).scatter_add(-1, few, weights[..., :2])
    torch.testing.assert_close(net.embed(few, weights), law @ net.embedding.weight[:VOCAB])
    sure = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(weights)
    torch.testing.assert_close(net(few, t.double(), None, sure), net(x_t, t.double()))
    net(few, t.double(), None, weights).sum().backward()
    assert net.embedding.weight.grad is not None
    assert bool((net.embedding.weight.grad[:VOCAB] != 0).all())
    assert not net.embedding.weight.grad[VOCAB:].any()  # [MASK] is no token of the law
