"""Recorded passes. What they do with memory and gradients runs here with a stand-in for the recording; on a GPU the
recordings themselves are held to the plain passes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsdfm.engine import graphs
from tsdfm.engine.graphs import GraphMemory, Recording, Replayed, Trained, alike, keeping

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")


@dataclass
class Work:
    """Replays by running `step`, which writes to fixed tensors as a graph does."""

    step: Callable[[], Any]

    def replay(self) -> None:
        self.step()


class ByHand(Trained):
    """A `Trained` whose recordings are made of `Work`, on any device."""

    def safe(self, inputs: Any) -> bool:
        return not self.off and not self.pool.busy

    def key(self, inputs: Any) -> Any:
        return tuple(x.shape for x in inputs)

    def record(self, inputs: Any) -> Any:
        static = self.copies(inputs)
        with torch.no_grad():
            output = torch.zeros_like(self.fn(*static))
        by_output, grads = torch.zeros_like(output), [torch.zeros_like(p) for p in self.params]

        def forward() -> None:
            with torch.no_grad():
                output.copy_(self.fn(*static))

        def backward() -> None:
            with torch.enable_grad():
                found = torch.autograd.grad(self.fn(*static), self.params, by_output)
            for mine, theirs in zip(grads, found, strict=True):
                mine.copy_(theirs)

        recorded = Recording(Work(forward), list(static), output)
        return graphs._Both(recorded, Work(backward), by_output, list(self.params), grads, self.pool)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def gradients(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Gradients of one step that does not clear them first."""
    (call(x) ** 2).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_of_replays_are_those_of_plain_passes() -> None:
    model = net()
    mine = ByHand(model.forward, model)
    for n in range(4):  # the second call records, the others replay it
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(n))
        found = gradients(model, mine, x)
        model.zero_grad(set_to_none=True)
        expected = gradients(model, model.forward, x)
        model.zero_grad(set_to_none=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert len(mine.made) == 1


def test_gradients_that_are_not_cleared_add_up() -> None:
    model = net()
    mine = ByHand(model.forward, model)
    xs = [torch.randn(5, 3, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    for _ in range(2):
        gradients(model, mine, xs[0])
        model.zero_grad(set_to_none=True)
    assert mine.made
    for x in xs:
        found = gradients(model, mine, x)
    model.zero_grad(set_to_none=True)
    for x in xs:
        expected = gradients(model, model.forward, x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_two_forwards_before_a_backward() -> None:
    model = net()
    mine = ByHand(model.forward, model)
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        gradients(model, mine, a)
        model.zero_grad(set_to_none=True)
    found = gradients(model, lambda x: mine(x) * mine(b), a)
    model.zero_grad(set_to_none=True)
    expected = gradients(model, lambda x: model(x) * model(b), a)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    assert not mine.pool.busy


def test_a_failed_recording_is_said_once_and_then_left_alone() -> None:
    class Fails(ByHand):
        def record(self, inputs: Any) -> Any:
            raise RuntimeError("no capture today\nand more")

    model = net()
    mine, x = Fails(model.forward, model), torch.ones(2, 3)
    mine(x)
    with pytest.warns(UserWarning, match="no CUDA graph for Sequential.*no capture today"):
        second = mine(x)
    assert mine.off
    assert torch.equal(mine(x), second)


def test_on_the_cpu_everything_is_plain() -> None:
    model = net()
    for kind in (Replayed, Trained):
        mine = kind(model.forward, model)
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(mine(torch.ones(2, 3)), model(torch.ones(2, 3)))
        assert not mine.made


def test_a_replay_keeps_what_its_step_works_on() -> None:
    """A graph holds addresses only: a network freed after its recording would leave it reading other tensors."""

    def make() -> tuple[Callable[[], None], weakref.ref[nn.Module]]:
        model = net()
        return keeping(lambda: None, lambda: model(torch.ones(1, 3))), weakref.ref(model)

    turn, alive = make()
    gc.collect()
    turn()
    assert alive() is not None


@needs_gpu
def test_recordings_are_the_same_bits() -> None:
    model = net().cuda()
    pool = GraphMemory()
    mine, trained = Replayed(model.forward, model, pool), Trained(model.forward, model, pool)
    for n in range(4):
        x = torch.randn(5, 3, device="cuda", generator=torch.Generator("cuda").manual_seed(n))
        with torch.no_grad():
            assert torch.equal(mine(x), model(x))
        found = gradients(model, trained, x)
        model.zero_grad(set_to_none=True)
        for a, b in zip(found, gradients(model, model.forward, x), strict=True):
            assert torch.equal(a, b)
        model.zero_grad(set_to_none=True)
    assert mine.made
    assert trained.made


def test_a_copy_is_laid_out_as_the_original() -> None:
    """A slice keeps its strides: with others, a compiled function is compiled again, in the middle of a recording."""
    whole = torch.arange(12).view(3, 4)
    for x in (whole, whole[:, :-1], whole.T, whole[1:, 1:]):
        made = alike(x)
        assert made.stride() == x.stride()
        assert torch.equal(made, x)
        assert made.data_ptr() != x.data_ptr()
    spread = torch.arange(3)[:, None].expand(3, 4)
    assert torch.equal(alike(spread), spread)


def test_nothing_is_collected_while_recording() -> None:
    model, seen = net(), list[bool]()

    class Watched(ByHand):
        def record(self, inputs: Any) -> Any:
            seen.append(gc.isenabled())
            return super().record(inputs)

    mine = Watched(model.forward, model)
    for _ in range(2):
        gradients(model, mine, torch.ones(5, 3))
        model.zero_grad(set_to_none=True)
    assert seen == [False]
    assert gc.isenabled()


@needs_gpu
def test_random_numbers_go_on_after_a_recording_that_failed() -> None:
    model = nn.Linear(3, 3).cuda()

    def impatient(x: Tensor) -> Tensor:
        noisy = nn.functional.dropout(model(x), 0.5, training=True)
        return noisy * noisy.sum().item() if torch.cuda.is_current_stream_capturing() else noisy

    replayed = Replayed(impatient, model)
    with torch.no_grad():
        replayed(torch.ones(2, 3).cuda())
        with pytest.warns(UserWarning, match="no CUDA graph"):
            replayed(torch.ones(2, 3).cuda())
        torch.manual_seed(0)
        first = replayed(torch.ones(2, 3).cuda())
        torch.manual_seed(0)
        assert torch.equal(first, replayed(torch.ones(2, 3).cuda()))


@needs_gpu
def test_what_copies_make_the_compiler_do_is_done_before_the_recording() -> None:
    """A function that must not be met for the first time while recording: its second call on other memory compiles."""
    model, met, calls = nn.Linear(3, 3).cuda(), set[int](), list[bool]()

    def choosy(x: Tensor) -> Tensor:
        recording = torch.cuda.is_current_stream_capturing()
        calls.append(recording)
        if x.data_ptr() not in met:
            met.add(x.data_ptr())
            torch.ones(1, device="cuda").item()  # as a compiler would: refused in a recording
        out: Tensor = model(x)
        return out

    replayed = Replayed(choosy, model)
    x = torch.ones(2, 3).cuda()
    with torch.no_grad():
        found = [replayed(x) for _ in range(3)]
        assert calls == [False, False, True]  # plain, before the recording, the recording; then a replay
        assert not replayed.off
        for one in found:
            torch.testing.assert_close(one, model(x))


@needs_gpu
def test_numbers_drawn_before_a_recording_are_given_back() -> None:
    model = nn.Linear(3, 3).cuda()
    replayed = Replayed(lambda x: nn.functional.dropout(model(x), 0.5, training=True), model)
    x = torch.ones(2, 3).cuda()
    with torch.no_grad():
        replayed(x)
        before = torch.cuda.get_rng_state()
        replayed.record([x])
    assert torch.equal(torch.cuda.get_rng_state(), before)
