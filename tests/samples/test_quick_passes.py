"""How the network is run: recordings are made once and change nothing, and batches fit the memory.

A recording runs here by a stand-in that writes to fixed tensors, as a graph does; on a GPU by a graph.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_nets import save_run, stir, tiny_spec, tiny_velocity

from tsdfm.cli import main
from tsdfm.distil.settings import NavigateSettings
from tsdfm.engine.graphs import Recording, Replayed, Routines
from tsdfm.engine.runner import Runner, wrapped
from tsdfm.errors import UserError
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.together import GeluLinear, Part, Together, gelu_inside, together
from tsdfm.nn.velocity import Velocity
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel
from tsdfm.samples.quick import (
    PAYS,
    OneRow,
    Pass,
    Quick,
    by_logits,
    filled,
    fitting,
    lean,
    row_by_row,
    row_bytes,
    settled,
)
from tsdfm.serve.served import ready
from tsdfm.tokens.tokenizer import ByteTokenizer

GIB = 2**30
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")


def tiny_model(quick: str = "auto", **spec: Any) -> TextModel:
    return TextModel(tiny_velocity(tiny_spec(**spec)), ByteTokenizer(), "teacher", quick=quick)


class ByHand(Replayed):
    """Records on any device: a replay runs the function on the recording's own inputs, into its own output."""

    def safe(self, inputs: Any) -> bool:
        return not self.off

    def record(self, inputs: Any) -> Recording:
        static = [None if x is None else x.clone() for x in inputs]
        output = self.fn(*static)
        graph = SimpleNamespace(replay=lambda: output.copy_(self.fn(*static)))
        return Recording(graph, [x for x in static if x is not None], output)


@pytest.mark.parametrize("step_size", [False, True])
@pytest.mark.parametrize("given", [{}, {"prefix": "Mia"}, {"trajectory": True}], ids=["free", "prefix", "watched"])
def test_replays_change_nothing_and_are_recorded_once(step_size: bool, given: dict[str, Any]) -> None:
    """Seven texts in threes: the last batch of one is filled up to three, and needs no recording of its own."""
    model, plain = tiny_model("compile", step_size=step_size), tiny_model("off", step_size=step_size)
    body = ByHand(model.velocity.net.hidden, model.velocity.net)
    model.passes.quick = quick = dataclasses.replace(model.velocity, net=wrapped(model.velocity.net, body))
    for seed in (1, 2):
        made = model.sample(n=7, steps=4, seed=seed, batch=3, **given)
        wanted = plain.sample(n=7, steps=4, seed=seed, batch=3, **given)
        assert torch.equal(made.tokens, wanted.tokens)
        assert made.nfe == 4
        if made.trajectory is not None and wanted.trajectory is not None:
            assert made.trajectory.rows == wanted.trajectory.rows
    assert [key[0][0] for key in body.made] == [((3, 20), (20, 1), torch.int64)]
    model.sample(n=2, steps=3)
    assert sorted(key[0][0][0][0] for key in body.made) == [2, 3]
    assert model.passes.quick is quick


class RoutinesByHand(Routines):
    """The same for whole steps."""

    def safe(self, inputs: Any) -> bool:
        return not self.off

    def record(self, inputs: Any) -> Recording:
        static, fn = [x.clone() for x in inputs], self.fn
        rooms = list[torch.Tensor](fn(*static))

        def replay() -> None:
            for room, value in zip(rooms, fn(*static), strict=True):
                room.copy_(value)

        return Recording(SimpleNamespace(replay=replay), static, rooms)


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_whole_steps_of_one_text_are_the_same_numbers(source: str) -> None:
    """All of them at once or one by one, as they are and recorded: with limits, temperatures, top-p and what is given;
    one recording for each kind."""
    plain = tiny_model("off", source=source, step_size=True)
    routines = RoutinesByHand(plain.velocity.net.hidden, plain.velocity.net)
    ones = [OneRow(plain.velocity), OneRow(plain.velocity, routines)]
    kinds: list[dict[str, Any]] = [
        {},
        {"prefix": "Mia "},
        {"infill": "a {3} b {2}", "temperature": 0.7},
        {"top_p": 0.8},
        {"temperature": 0.0, "jump": "euler"},
        {"on_pass": lambda _: None},  # its states are looked at: step by step
    ]
    for one in ones:
        model = tiny_model("off", source=source, step_size=True)
        model.passes.model = lambda rows, passes, reads="posterior", one=one: Pass(plain.velocity, 1, reads, one=one)  # type: ignore[method-assign]
        for seed in (1, 2):
            for how in kinds:
                made, wanted = (each.sample(n=3, steps=4, seed=seed, batch=1, **how) for each in (model, plain))
                assert torch.equal(made.tokens, wanted.tokens)
    assert len(routines.made) == len(kinds)
    model.sample(n=1, steps=3, jump="hazard-euler")  # this jump remembers: its steps are not whole ones
    assert len(routines.made) == len(kinds)


def test_a_network_that_is_told_a_number_of_its_own_takes_no_whole_steps() -> None:
    """Its number is drawn before each pass, outside of what could be recorded."""
    plain, model = (tiny_model("off", step_size=True, latent=True) for _ in range(2))
    passed = Pass(plain.velocity, 1, one=OneRow(plain.velocity))
    model.passes.model = lambda rows, passes, reads="posterior": passed  # type: ignore[method-assign]
    made, wanted = (each.sample(n=3, steps=4, seed=1, batch=1) for each in (model, plain))
    assert torch.equal(made.tokens, wanted.tokens)


def test_settled_weights_make_the_same_bits() -> None:
    """What autocast casts in every pass is cast once; all else stays as it is."""
    velocity = tiny_velocity(tiny_spec(step_size=True), torch.float32)
    net = settled(velocity.net)
    assert settled(net) is net
    assert velocity.net.blocks[0].qkv.weight.dtype == torch.float32  # a copy
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16, torch.float32}
    x, t = torch.arange(60).view(3, 20), torch.tensor([0.1, 0.5, 0.9])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for model in (Pass, lambda v: Pass(v, 5)):
            mine, own = (model(dataclasses.replace(velocity, net=each)) for each in (net, velocity.net))
            assert torch.equal(mine(x, t, t / 4), own(x, t, t / 4))
            assert torch.equal(mine.look(x, t, t / 4)(torch.arange(9)), own.look(x, t, t / 4)(torch.arange(9)))


class OnGpu(Velocity):
    """One that says that it is on a GPU; it is not asked for a pass here."""

    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]


def is_lean(velocity: Velocity) -> bool:
    """Are its conditions made together, and its GELU inside a product?"""
    found = {kind for part in velocity.net.modules() for kind in (Together, Part, GeluLinear) if isinstance(part, kind)}
    assert len(found) in (0, 3)
    return bool(found)


def test_a_network_is_lean_in_16_bits_on_a_gpu_alone() -> None:
    """Recorded or not, in the server too; on a CPU, in float32 and in training it is as it was written."""
    velocity = tiny_velocity(tiny_spec(step_size=True), torch.float32)
    gpu = OnGpu(velocity.spec, velocity.net, velocity.source, velocity.schedule)
    assert not is_lean(velocity)
    for how in ("off", "record"):
        for each, bf16, want in ((gpu, True, True), (gpu, False, False), (velocity, True, False)):
            assert is_lean(Quick(each, how, bf16).model(2, 1).velocity) == want
        served = ready(TextModel(gpu, ByteTokenizer(), "teacher", True), how)
        assert is_lean(served.velocity)
        assert lean(served.velocity, True).net is served.velocity.net
        assert not is_lean(ready(TextModel(velocity, ByteTokenizer(), "teacher", True), how).velocity)
    assert not is_lean(velocity)


@pytest.mark.parametrize("step_size", [False, True])
def test_lean_networks_are_settled_with_the_same_bits(step_size: bool) -> None:
    """A recording has the bits of the passes that were launched before it; as many weights, and their logits."""
    velocity = tiny_velocity(tiny_spec(step_size=step_size), torch.float32)
    net = gelu_inside(together(velocity.net))
    x, t = torch.arange(60).view(3, 20), torch.tensor([0.1, 0.5, 0.9])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mine, own, plain = (
            Pass(dataclasses.replace(velocity, net=each))(x, t, t / 4) for each in (settled(net), net, velocity.net)
        )
    assert torch.equal(mine, own)
    torch.testing.assert_close(mine, plain, rtol=0.05, atol=0.2)


@needs_gpu
def test_launched_passes_follow_weights_that_change() -> None:
    velocity = tiny_velocity(tiny_spec(step_size=True), torch.float32)
    velocity.net.to("cuda").requires_grad_(False)
    model, how = TextModel(velocity, ByteTokenizer(), "teacher", True, "off"), {"n": 8, "steps": 8, "seed": 1}
    before = model.sample(**how).tokens
    stir(velocity.net, seed=2)
    after = model.sample(**how).tokens
    assert not torch.equal(before, after)
    assert torch.equal(after, dataclasses.replace(model).sample(**how).tokens)


@needs_gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_one_text_is_one_graph_and_the_same_text(bf16: bool) -> None:
    velocity = tiny_velocity(tiny_spec(step_size=True), torch.float32)
    velocity.net.to("cuda").requires_grad_(False)
    models = [TextModel(velocity, ByteTokenizer(), "teacher", bf16, quick) for quick in ("record", "off")]
    for how in ({}, {"prefix": "Mia "}, {"temperature": 0.7}):
        made, wanted = (model.sample(n=3, steps=8, seed=1, batch=1, **how).tokens for model in models)
        assert torch.equal(made, wanted)
    one = models[0].passes.one
    assert one is not None
    assert one.routines is not None
    assert not one.routines.off
    assert len(one.routines.made) == 3


def test_when_recording_pays() -> None:
    gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    auto = Quick(gpu)
    auto.asked[4] += PAYS - 1
    assert not auto.pays(4)
    auto.asked[4] += 1  # in another call, say
    assert auto.pays(4)
    assert not auto.pays(5)
    for how in ("off", "compile"):
        other = Quick(gpu, how)
        other.asked[4] += 10**6 if how == "off" else 1
        assert other.pays(4) == (how == "compile")
    cpu = Quick(tiny_velocity(tiny_spec()))
    cpu.asked[4] += 10**6
    assert not cpu.pays(4)
    model = tiny_model()
    assert model.passes.model(4, 10**6).velocity is model.velocity


def test_a_way_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"'compil'.*compile"):
        tiny_model("compil")


def test_a_model_that_is_changed_has_recordings_of_its_own() -> None:
    model = tiny_model()
    other = dataclasses.replace(model, quick="off")
    assert other.passes.how == "off"
    assert other.passes is not model.passes


def test_places_are_those_of_the_whole() -> None:
    velocity = tiny_velocity(tiny_spec(step_size=True))
    x, t = torch.arange(60).view(3, 20), torch.tensor([0.1, 0.5, 0.9])
    places = torch.tensor([0, 59, 21, 7, 7])
    with torch.no_grad():
        whole = velocity(x, t, t / 4)
        assert torch.equal(Pass(velocity)(x, t, t / 4), whole)
        other = dataclasses.replace(velocity, net=wrapped(velocity.net, velocity.net.hidden))
        for model in (Pass(velocity), Pass(other), Pass(other, 5), Pass(other, 5, places=3)):
            read = model.look(x, t, t / 4)
            assert torch.allclose(read(places), whole.flatten(0, 1)[places], rtol=1e-12, atol=1e-12)
            assert read(places[:0]).shape == (0, 257)


def test_the_head_sees_only_what_may_move() -> None:
    """A prefix of 11 of 20 tokens with the anchor, mask source, one step: the nine others, and nothing else."""
    model, rows = tiny_model(), list[int]()
    model.velocity.net.head.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].numel() // 16))
    model.sample(n=3, steps=1, prefix="0123456789")
    assert rows == [27]
    rows.clear()
    model.sample(n=1, steps=200)
    assert sum(rows) < 200 * 19 * 0.1  # of 3 800 logits rows: Σ 1/k ≈ 5.9 looks a position


def test_filled() -> None:
    x = torch.tensor([[1, 2], [3, 4]])
    assert filled(x, 4).tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    assert filled(x, 2) is x
    assert filled(x[:, 0], 3).tolist() == [1, 3, 3]


def test_a_bias_reaches_the_logits() -> None:
    """All mass on "e": greedy or not, with a trajectory or without."""
    model = tiny_model()
    bias = torch.full((257,), -torch.inf)
    bias[ord("e")] = 0.0
    for given in ({}, {"trajectory": True}, {"temperature": 0.0}, {"prefix": "x"}):
        text = model.sample(n=2, steps=3, bias=bias, **given).texts[1]
        assert text == ("x" if "prefix" in given else "e") + "e" * 18
    with pytest.raises(UserError, match="one number for each of the 257"):
        model.sample(bias=bias[:5])


def test_rows_that_fit() -> None:
    """170M, |V| = 50 257, length 1 024: 4·(10·768 + 3·3 072) bytes a token, and 14 a logit where all are wanted."""
    spec = tiny_spec(shape=NetSettings(preset="170m").shape(), vocab=50257, length=1024)
    assert row_bytes(spec, whole=False) == 1024 * 4 * 16896  # 66 MiB
    assert row_bytes(spec, whole=True) == 1024 * (4 * 16896 + 14 * 50257)
    assert row_bytes(spec, whole=True, states=6) == 1024 * (6 * 4 * 16896 + 14 * 50257)
    assert fitting(130 * GIB, row_bytes(spec, whole=False), 1024) == 64  # 2¹⁶ tokens are enough
    assert fitting(130 * GIB, row_bytes(spec, whole=True), 1024) == 64
    assert fitting(20 * GIB, row_bytes(spec, whole=True), 1024) == 8  # 13 would fit
    assert fitting(6 * GIB, row_bytes(spec, whole=False), 1024) == 32  # 46 would
    assert fitting(10**6, 10**9, 1024) == 1  # let it try
    assert fitting(130 * GIB, 1000, 16) == 256
    assert fitting(130 * GIB, 1000, 2**20) == 1


def test_batches_are_shared_out_evenly() -> None:
    model = tiny_model(length=4096)
    assert model.batch_size() == 63
    assert [model._rows(n, None, False, None) for n in (1, 63, 64, 130)] == [1, 63, 32, 44]
    assert [model._rows(n, 50, False, None) for n in (1, 63, 130)] == [1, 50, 50]


def test_a_guide_that_compares_texts_keeps_its_batch() -> None:
    """A text then depends on the batch it is in: 63 and 1 as ever, not 32 and 32."""
    model = tiny_model(length=4096)
    guides = [Guide("sequence", None, NavigateSettings(selector="random", entropy=how)) for how in ("batch", "vocab")]
    assert [model._rows(64, None, False, guide) for guide in guides] == [63, 32]
    assert [model._rows(64, 10, False, guide) for guide in guides] == [10, 10]
    spec = tiny_spec(vocab=50257, length=1024)
    assert [by_logits(spec, torch.device(name)) for name in ("cuda", "cpu")] == [5, 1]


@pytest.mark.parametrize("quick", ["off", "auto"])
def test_the_command_takes_the_switch(tmp_path: Path, quick: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", tiny_spec())
    assert main(["sample", str(tmp_path / "run"), "--n", "1", "--steps", "2", "--quick", quick]) == 0
    assert "1 text, 2 network passes, temperature 1" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "run"), "--quick", "fast"]) == 2


@needs_gpu
@pytest.mark.parametrize("step_size", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_graph_writes_the_same_texts(step_size: bool, bf16: bool) -> None:
    """Seven texts in fours: the recording of four, and the last three filled up to it. The plain run has four and
    three, whose products may round otherwise in bf16: there the whole batch alone is compared."""
    velocity = tiny_velocity(tiny_spec(step_size=step_size), torch.float32)
    velocity.net.to("cuda").requires_grad_(False)
    models = [TextModel(velocity, ByteTokenizer(), "teacher", bf16, quick) for quick in ("auto", "off")]
    for seed in (1, 2):
        made, wanted = (model.sample(n=7, steps=PAYS, seed=seed, batch=4, prefix="Mia").tokens for model in models)
        assert torch.equal(made[:4] if bf16 else made, wanted[:4] if bf16 else wanted)
    quick = models[0].passes.quick
    assert quick is not None
    assert isinstance(quick.net, Runner)
    body = quick.net.body
    assert isinstance(body, Replayed)
    assert not body.off
    assert len(body.made) == 1
    assert models[1].passes.quick is None
    assert models[0].batch_size() == 256


def test_row_by_row_takes_conditions_and_heads_one_at_a_time() -> None:
    """The same weights, and the same logits in float64; the layers of the condition have the bits of single rows.

    What is no product, as the waves of t, may round by a machine's vectors.
    """
    velocity = tiny_velocity(tiny_spec(step_size=True), torch.float64)
    net = row_by_row(velocity.net)
    assert [id(x) for x in net.parameters()] == [id(x) for x in velocity.net.parameters()]
    assert type(velocity.net.blocks[0].adaln) is torch.nn.Linear is type(net.head)
    x, t = torch.arange(60).view(3, 20), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    found, heads = Pass(dataclasses.replace(velocity, net=net), by_row=True), list[int]()
    net.head.register_forward_hook(lambda _, inputs, __: heads.append(len(inputs[0])))
    assert torch.allclose(found(x, t, t), Pass(velocity)(x, t, t), rtol=0, atol=1e-12)
    assert heads[:3] == [1, 1, 1]
    told, layer = velocity.net.condition(t, t)[:, :8], velocity.net.blocks[0].adaln
    assert told.shape[1] == layer.in_features
    assert torch.equal(net.blocks[0].adaln(told), torch.cat([layer(one) for one in told.split(1)]))
