"""Roll-outs of networks that answer at [MASK] alone, or with p(x_1 | the other positions): by hand, in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from step_parts import losses
from student_parts import PairEnergy, flow_of, spec_of, stirred
from torch import Tensor

from training import student_settings, student_task
from tsdfm import kernels
from tsdfm.distil.chain import ESTIMATORS, target_of
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.start import start_from
from tsdfm.flow import RowNoise
from tsdfm.kernels.fused import raised
from tsdfm.nn.velocity import Velocity, VelocitySpec, as_model
from tsdfm.tokens.loader import HostBatch

V, L, B = 11, 8, 5
T = torch.tensor([0, 256, 512, 768, 1008], dtype=torch.float64) / 1024
H = torch.tensor([1.0, 0.5, 0.5, 0.125, 1 / 64], dtype=torch.float64)
SHARES = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
SPECS = {
    "subs": spec_of("mask", V, L, 0, logits="subs", time=False),
    "others": spec_of("uniform", V, L, 0, logits="others", clock="sigma"),
}


def stages(net: Any, spec: VelocitySpec, x_t: Tensor, policy: Any) -> list[tuple[Tensor, Tensor]]:
    """The states of an RK-4 chain and the logits of x_1 at each, as samplers read them."""
    noise, half, model = RowNoise(3, torch.arange(B)), H / 2, as_model(net, spec)
    found, x = list[tuple[Tensor, Tensor]](), x_t
    for time in (T, T + half, T + half, T + H):
        found.append((x, model(x, time.float(), half.float())))
        if len(found) < 4:
            x = policy(x, found[-1][1], time, half, noise)
    return found


@pytest.mark.parametrize("name", ["blind", "sequence-to-token"])
@pytest.mark.parametrize("kind", SPECS)
def test_the_target_is_the_average_of_what_samplers_read(kind: str, name: str) -> None:
    """Logits of x_1, averaged over the stages; at a position that was [MASK], over those at which it still is."""
    spec = SPECS[kind]
    net = stirred(spec)
    settings = NavigateSettings(tau=0.3, t_min=2.0)
    policy = policy_from(name, flow_of(spec.source, V), settings=settings, compass=PairEnergy(V + 1))
    x_t = torch.randint(0, spec.flow_source().tokens, (B, L), generator=torch.Generator().manual_seed(1))
    if kind == "subs":
        x_t[:, ::2] = V
    with torch.no_grad():
        found = stages(net, spec, x_t, policy)
    if kind == "subs":
        learned = (x_t == V).flatten().nonzero()[:, 0]
        still = torch.stack([(x == V).double() for x, _ in found]) * torch.tensor(SHARES).double()[:, None, None]
        assert bool((still[3][x_t == V] == 0).any())  # some were revealed on the way
        summed = sum(w[..., None] * k.nan_to_num(neginf=0.0) for w, (_, k) in zip(still, found, strict=True))
        wanted = (summed / still.sum(0)[..., None]).flatten(0, 1)[learned].softmax(-1)
        for before, after in pairwise(found):
            assert torch.equal(before[0][before[0] != V], after[0][before[0] != V])  # and stayed
    else:
        learned = None
        wanted = sum(s * k for s, (_, k) in zip(SHARES, found, strict=True)).flatten(0, 1).softmax(-1)  # type: ignore[union-attr]
    target = target_of(
        net, x_t, T, H, policy, RowNoise(3, torch.arange(B)), ESTIMATORS["rk4"], spec=spec, places=learned
    )
    torch.testing.assert_close(target.log_p(slice(None)).exp(), wanted, rtol=1e-6, atol=1e-9)


def test_columns_are_raised_once_for_each_token() -> None:
    logits = torch.zeros(2, 4, dtype=torch.float64)
    found = raised(logits, torch.tensor([[1, 1], [0, 3]]), torch.tensor([[0.5, 0.25], [1.0, 2.0]]))
    assert found.tolist() == [[0, 0.75, 0, 0], [1, 0, 0, 2]]


@pytest.mark.parametrize("kind", SPECS)
def test_a_fitted_student_begins_as_its_teacher(kind: str) -> None:
    """Told σ, or nothing at all, and h besides: the teacher's answers, whatever h is."""
    spec = SPECS[kind]
    teacher = stirred(replace(spec, step_size=False), size=0.15)
    student = spec.network().double()
    start_from(student, teacher.state_dict(), spec, step_size=False, fit=True, where="here")
    x = torch.randint(0, V, (4, L), generator=torch.Generator().manual_seed(0))
    t, h = torch.tensor([0.1, 0.4, 0.7, 0.9]), 2.0 ** -torch.arange(4.0)
    pairs = ((teacher, replace(spec, step_size=False)), (student, spec))
    with torch.no_grad():
        one, other = (as_model(net, each)(x, t, h) for net, each in pairs)
    gap = (one.log_softmax(-1) - other.log_softmax(-1)).nan_to_num().abs().max()
    assert gap < (1e-4 if kind == "subs" else 0.2)


@pytest.mark.parametrize("name", ["ts-dfm-mdlm", "ts-dfm-duo"])
def test_kernels_find_the_same_losses(name: str) -> None:
    pytest.importorskip("triton")
    device = torch.device("cpu")
    with kernels.forced():
        mine = losses(name, device, steps=1)
    with kernels.without():
        theirs = losses(name, device, steps=1)
    for found, wanted in zip(mine, theirs, strict=True):
        assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("policy", ["blind", "sequence-to-token"])
def test_the_loss_has_gradients_that_differences_confirm(kind: str, policy: str, monkeypatch: Any) -> None:
    """The whole loss of a batch, large and small steps, of both methods."""
    spec = SPECS[kind]
    given = {} if policy == "blind" else {"policy": policy, "compass": Path("x"), "navigate": NavigateSettings(tau=0.2)}
    settings = student_settings(
        tokens=Path("a"), init_from=Path("b"), out=Path("c"), share=0.5,
        level_weights=(0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0), **given,
    )  # fmt: skip
    task = student_task(settings, spec, compass=PairEnergy(V + 1))
    net, semi = stirred(spec), stirred(spec, seed=1)
    task.teacher.net = semi
    rows = torch.arange(6)
    batch = HostBatch(torch.randint(0, V, (6, L), generator=torch.Generator().manual_seed(4)), rows, rows)
    loss, extras = task.loss(net, batch, 1)
    assert extras["kl"] > 0
    assert extras["small"] != 0
    loss.backward()
    weight, step = net.head.weight, 1e-6
    assert weight.grad is not None
    for place in ((3, 2), (7, 5)):
        with torch.no_grad():
            weight[place] += step
            up = task.loss(net, batch, 1)[0]
            weight[place] -= 2 * step
            down = task.loss(net, batch, 1)[0]
            weight[place] += step
        assert float((up - down) / (2 * step)) == pytest.approx(float(weight.grad[place]), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("kind", SPECS)
def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(kind: str) -> None:
    spec = SPECS[kind]
    settings = student_settings(
        tokens=Path("a"), init_from=Path("b"), out=Path("c"), share=0.5, target="teacher", teacher=Path("d")
    )
    net, rows = stirred(spec), torch.arange(6)
    teacher = Velocity(spec, net, spec.flow_source(), spec.flow_schedule())
    task = student_task(settings, spec, teacher=teacher)
    task.teacher.net = net
    batch = HostBatch(torch.randint(0, V, (6, L), generator=torch.Generator().manual_seed(4)), rows, rows)
    _, extras = task.loss(net, batch, 1)
    assert float(extras["small"]) == pytest.approx(0.0, abs=1e-9)
    task.floor.teacher.net.head.bias.data[3] += 1.0
    other = stirred(spec)
    assert float(task.loss(other, batch, 1)[1]["small"]) > 1e-3
