"""Target chains against a naive re-implementation with whole logits, and how much is alive at once."""

import weakref
from typing import Any

import pytest
import torch
from student_parts import PairEnergy, flow_of, spec_of, stirred
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tsdfm.distil.chain import ESTIMATORS, Estimator, target_of
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.settings import NavigateSettings
from tsdfm.flow import RowNoise
from tsdfm.kernels import fused
from tsdfm.kernels.fused import Divergence, fused_loss

V, L, B = 11, 8, 5
T = torch.tensor([0, 256, 512, 768, 1008], dtype=torch.float64) / 1024
H = torch.tensor([1.0, 0.5, 0.5, 0.125, 1 / 64], dtype=torch.float64)  # four of them end at t + h = 1


def parts(source: str, name: str, anchor: int = 1) -> tuple[Any, Any, torch.Tensor]:
    net = stirred(spec_of(source, V, L, anchor))
    held = torch.arange(L) < anchor
    policy = policy_from(
        name, flow_of(source, V), settings=NavigateSettings(tau=0.3), compass=PairEnergy(V + 1), held=held
    )
    made = torch.Generator().manual_seed(1)
    return net, policy, torch.randint(0, V + (source == "mask"), (B, L), generator=made)


def by_hand(net: Any, x_t: torch.Tensor, policy: Any, kind: str) -> list[torch.Tensor]:
    """The stages' whole logits."""
    noise, half = RowNoise(3, torch.arange(B)), H / 2
    k1 = net(x_t, T.float(), half.float())
    if kind == "euler":
        return [k1]
    mid1 = policy(x_t, k1, T, half, noise)
    k2 = net(mid1, (T + half).float(), half.float())
    if kind == "heun":
        return [k1, k2]
    mid2 = policy(mid1, k2, T + half, half, noise)
    k3 = net(mid2, (T + half).float(), half.float())
    mid3 = policy(mid2, k3, T + half, half, noise)
    k4 = net(mid3, (T + H).float(), half.float())
    assert not torch.equal(mid1, mid2)
    assert not torch.equal(mid2, mid3)
    return [k1, k2, k3, k4]


WEIGHTS = {"rk4": (1, 2, 2, 1), "heun": (1, 1), "euler": (1,)}


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("name", ["blind", "sequence-to-token"])
@pytest.mark.parametrize("kind", ["rk4", "heun", "euler"])
@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_chain(source: str, name: str, kind: str, average: str) -> None:
    net, policy, x_t = parts(source, name)
    with torch.no_grad():
        stages = by_hand(net, x_t, policy, kind)
    shares = [w / sum(WEIGHTS[kind]) for w in WEIGHTS[kind]]
    if average == "logits":
        p = sum(s * k for s, k in zip(shares, stages, strict=True)).softmax(-1)  # type: ignore[union-attr]
    else:
        p = sum(s * k.softmax(-1) for s, k in zip(shares, stages, strict=True))
    target = target_of(net, x_t, T, H, policy, RowNoise(3, torch.arange(B)), ESTIMATORS[kind], average, anchor=1)
    found = target.log_p(slice(None)).exp()
    torch.testing.assert_close(found, p[:, 1:].flatten(0, 1), rtol=1e-10, atol=1e-12)
    assert not any(stage.requires_grad for stage in target.hidden)


def test_shares_add_up() -> None:
    for kind, estimator in ESTIMATORS.items():
        assert sum(estimator.shares) == pytest.approx(1.0)
        assert estimator.midpoints == len(WEIGHTS[kind]) - 1
    assert Estimator((0.0, 1.0), (0.5, 0.5)).midpoints == 1


class Alive(TorchDispatchMode):
    """The most elements of floating tensors alive at once, by storage."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self.largest = 0, 0, 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_iter(out):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.see(x)
        return out

    def see(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key = storage.data_ptr()
        if key in self.known or storage.nbytes() == 0:
            return
        size = storage.nbytes() // x.element_size()
        self.known.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("name", ["blind", "sequence-to-token"])
def test_logits_live_one_stage_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four stages and the loss with a wide vocabulary: at no time two whole [B, L, V], and none at all in the loss."""
    monkeypatch.setitem(fused.ROOM, "cpu", 4 * 4000)
    vocab, rows, length = 4000, 8, 16
    whole = rows * length * vocab
    spec = spec_of("uniform", vocab, length, 0)
    net = spec.network()
    monkeypatch.setattr("tsdfm.distil.navigate.ROOM", {"cpu": 4 * vocab})
    settings = NavigateSettings(tau=0.0, entropy="vocab")
    policy = policy_from(name, flow_of("uniform", vocab), settings=settings, compass=Cheap())
    x_t = torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(0))
    t, h = torch.full((rows,), 0.5, dtype=torch.float64), torch.full((rows,), 0.125, dtype=torch.float64)
    with Alive() as chain:
        target = target_of(net, x_t, t, h, policy, RowNoise(0, torch.arange(rows)), ESTIMATORS["rk4"])
    assert chain.largest == whole
    assert whole <= chain.peak < 1.5 * whole
    scale = torch.full((rows * length,), 1.0 / (rows * length))
    with Alive() as loss:
        net(
            x_t,
            t.float(),
            h.float(),
            then=lambda hidden, head: fused_loss(hidden.flatten(0, 1), head, Divergence(target), scale),
        ).backward()
    assert loss.peak < 0.8 * whole


class Cheap:
    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return x.double().mean(-1)


def test_work_inside_the_forward_compiles_once() -> None:
    """`then` differs from step to step and the network does not: one compilation, and the result of the plain call."""
    net, plain = stirred(spec_of()), stirred(spec_of())
    counter = CompileCounter()
    net.compile(backend=counter)
    x_t = torch.randint(0, V, (3, L), generator=torch.Generator().manual_seed(0))
    for step in range(4):
        t, h = torch.rand(3, generator=torch.Generator().manual_seed(step)), torch.full((3,), 0.5)
        factor = torch.tensor(float(step))
        found = net(x_t, t, h, then=lambda hidden, head, factor=factor: head(hidden).sum() * factor)
        found.backward()
        assert found.item() == pytest.approx(plain(x_t, t, h).sum().item() * step, rel=1e-9)
    assert counter.frame_count == 1
