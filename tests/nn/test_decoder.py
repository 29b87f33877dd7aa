"""The decoder against transformers' own modules, given a full attention mask and the same random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tsdfm.errors import UserError
from tsdfm.nn.decoder import Decoder, DecoderShape, flops_per_token, told_decoder
from tsdfm.nn.network import fill

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "Qwen2": {"biases": True, "theta": 1e6, "eps": 1e-6},
    "Qwen3": {"head_norms": True, "theta": 1e6, "eps": 1e-6, "head": 16},
    "Llama": {"theta": 5e5, "eps": 1e-5},
}
NAMES = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "out",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
}


def renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    name = name.replace("model.layers", "blocks").replace("model.embed_tokens", "embedding")
    return name.replace("model.norm", "norm").replace("lm_head", "head")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str) -> None:
    words = KINDS[kind]
    sizes = {**SIZES, "head_dim": words.get("head", 8), "rms_norm_eps": words["eps"]}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, rope_parameters={"rope_type": "default", "rope_theta": words["theta"]}
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for weight in theirs.parameters():  # the default is so small that a wrong rotation would hardly show
        torch.nn.init.normal_(weight, std=0.3)
    shape = DecoderShape(
        width=32, depth=2, heads=4, kv_heads=2, head=sizes["head_dim"], hidden=48,
        **{name: value for name, value in words.items() if name != "head"},
    )  # fmt: skip
    ours = Decoder(shape, vocab=40, tokens=40).eval()
    ours.load_state_dict({renamed(name): weight for name, weight in theirs.state_dict().items()})
    tokens = torch.randint(40, (3, 17), generator=torch.Generator().manual_seed(1))
    full = torch.zeros(3, 1, 17, 17)
    with torch.no_grad():
        want: Tensor = theirs(tokens, attention_mask=full).logits
        causal: Tensor = theirs(tokens).logits
        got = ours(tokens, torch.zeros(3))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert (want - causal).abs().max() > 1e-2  # the mask mattered


def test_every_position_sees_every_other() -> None:
    shape = DecoderShape(width=16, depth=1, heads=2, kv_heads=1, head=8, hidden=24)
    torch.manual_seed(0)
    net = Decoder(shape, vocab=9, tokens=10)
    embedded = net.embedding(torch.arange(5)[None]).detach().requires_grad_()
    cos, sin = net.rotary(5)
    net.blocks[0](embedded, None, cos, sin)[0, 0].sum().backward()
    assert embedded.grad is not None
    assert bool((embedded.grad.abs().sum(-1) > 0).all())


def test_a_decoder_of_16_bits_turns_by_angles_of_32() -> None:
    """Rounded to 16 bits, cos and sin of far places would be those of others."""
    shape = DecoderShape(width=16, depth=1, heads=2, kv_heads=1, head=8, hidden=24)
    torch.manual_seed(0)
    net = Decoder(shape, vocab=9, tokens=10)
    for part in (net.embedding, net.blocks, net.norm):
        part.to(torch.bfloat16)
    tables: list[Tensor] = []
    net.blocks[0].register_forward_pre_hook(lambda _, given: tables.extend(given[2:4]))
    assert net.hidden(torch.zeros(1, 300, dtype=torch.int64)).dtype == torch.bfloat16
    for table, want in zip(tables, net.rotary(300), strict=True):
        assert torch.equal(table, want)
        assert not torch.equal(table, want.bfloat16().float())


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="kv_heads divides heads"):
        DecoderShape(width=16, depth=1, heads=3, kv_heads=2, head=8, hidden=24)


def test_a_condition_starts_at_nothing_and_can_be_learned() -> None:
    """A decoder that is told t and h begins as the one that is not, and recomputing changes no gradient."""
    shape = DecoderShape(width=16, depth=2, heads=2, kv_heads=1, head=8, hidden=24)
    torch.manual_seed(0)
    plain = Decoder(shape, vocab=9, tokens=10)
    told = Decoder(told_decoder(shape, told=True), vocab=9, tokens=10, step_size=True)
    fill(told, plain.state_dict())
    x, t, h = torch.arange(5)[None], torch.tensor([0.3]), torch.tensor([0.125])
    assert torch.equal(told(x, t, h), plain(x, t))
    for part in (told.adaln, *(block.adaln for block in told.blocks)):
        torch.nn.init.normal_(part.weight, std=0.3)
    assert not torch.allclose(told(x, t, h), told(x, t, 2 * h))
    assert not torch.allclose(told(x, t, h), told(x, 2 * t, h))
    again = Decoder(told.shape, vocab=9, tokens=10, step_size=True, checkpoint=True)
    again.load_state_dict(told.state_dict())
    for net in (told, again):
        net(x, t, h).square().sum().backward()
    for mine, theirs in zip(told.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert told.blocks[0].adaln.weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="another network"):
        fill(told, {name: weight for name, weight in plain.state_dict().items() if name != "norm.weight"})
    with pytest.raises(UserError, match="needs a condition"):
        Decoder(shape, vocab=9, tokens=10, step_size=True)
    assert told_decoder(None, told=True) is None


@pytest.mark.parametrize("length", [8, 24])
def test_flops_against_torch_s_counter(length: int) -> None:
    shape = DecoderShape(width=32, depth=2, heads=4, kv_heads=2, head=16, hidden=48)
    net = Decoder(shape, vocab=40, tokens=40)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(torch.zeros(1, length, dtype=torch.long), torch.zeros(1))
    assert counter.get_total_flops() == flops_per_token(shape, 40, length) * length
