import math

import pytest
import torch
from compass_parts import ANCHOR, LENGTH, compass_spec, make_negatives, make_teacher

from tsdfm.compass.loss import nce, ordering, regularisation
from tsdfm.compass.settings import CompassLoop, CompassSettings
from tsdfm.compass.states import positive_times, walk
from tsdfm.compass.task import CompassTask
from tsdfm.engine.distributed import Processes
from tsdfm.flow import RowNoise, row_times
from tsdfm.tokens.loader import Batch


def energies(batch=6, n=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(batch, n + 2, generator=g, dtype=torch.float64) * 3
    return made.requires_grad_()


def test_nce_equals_its_formula_and_its_gradient_the_softmax():
    e = energies()
    void = torch.zeros(6, 4, dtype=torch.bool)
    void[2, 1] = void[3] = True
    got = nce(e[:, 0], e[:, 2:], void)
    for b in range(6):
        weights = [math.exp(-e[b, 0].item())]
        weights += [math.exp(-e[b, 2 + j].item()) for j in range(4) if not void[b, j]]
        assert got[b].item() == pytest.approx(-math.log(weights[0] / sum(weights)), rel=1e-12, abs=1e-12)
    got.sum().backward()
    p = torch.softmax(torch.cat([-e[:, :1], (-e[:, 2:]).masked_fill(void, -math.inf)], 1).detach(), 1)
    assert torch.allclose(e.grad[:, 0], 1 - p[:, 0], atol=1e-12)  # lowers the positive
    assert torch.allclose(e.grad[:, 2:], -p[:, 1:], atol=1e-12)  # raises the negatives, the void ones not at all
    assert e.grad[3].abs().sum() == 0
    assert e.grad[2, 3] == 0
    assert (e.grad[:, 1] == 0).all()


def test_nce_is_safe_with_large_energies():
    e = torch.tensor([[1e4, -1e4]], dtype=torch.float64)
    assert nce(e[:, 0], e[:, 1:]).item() == pytest.approx(2e4)
    assert nce(-e[:, 0], -e[:, 1:]).item() == 0.0


def test_ordering_is_a_hinge_with_a_margin_that_grows_with_delta():
    positive = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    earlier = torch.tensor([1.0, 0.1, 0.5, 0.5], dtype=torch.float64, requires_grad=True)
    delta = torch.tensor([0.5, 0.5, 0.2, 0.2], dtype=torch.float64)
    void = torch.tensor([False, False, False, True])
    got = ordering(positive, earlier, delta, 0.3, void)
    assert torch.allclose(got, torch.tensor([0.0, 0.05, 0.56, 0.0], dtype=torch.float64), atol=1e-15)
    got.sum().backward()
    assert positive.grad.tolist() == [0, 1, 1, 0]
    assert earlier.grad.tolist() == [0, -1, -1, 0]
    assert regularisation(torch.tensor([-3.0])).item() == 9.0


def make_task(source, tmp_path, **settings):
    made = CompassSettings(
        tokens=tmp_path, teacher=tmp_path, out=tmp_path, negatives=4, loop=CompassLoop(batch=8), **settings
    )
    task = CompassTask(made, compass_spec(source), make_negatives(source, make_teacher(source)), None, Processes())
    task.model.double()
    for p in task.model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return task


def make_batch(batch=8, first=0):
    g = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 40, (64, LENGTH), generator=g)
    return Batch(tokens[first : first + batch], torch.arange(first, first + batch))


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_loss_of_a_batch_equals_a_float64_reference_row_by_row(source, tmp_path):
    task = make_task(source, tmp_path, lambda_reg=0.7, lambda_order=1.3, gamma=2.0)
    loss, parts = task.loss(task.model, make_batch(), 0)
    stacked, delta, void, unmoved = task.states(make_batch())
    total = 0.0
    for b in range(8):
        energy = [task.model(state[None]).item() for state in stacked[b]]  # one state at a time
        positive, earlier = energy[:2]
        against = [e for e, v in zip(energy[2:], void[b].tolist(), strict=True) if not v]
        contrast = math.log(sum(math.exp(positive - e) for e in [positive, *against]))
        order = 0.0 if unmoved[b] else max(0.0, positive - earlier + 2.0 * delta[b].item())
        total += contrast + 0.7 * positive**2 + 1.3 * order
    assert loss.item() == pytest.approx(total / 8, rel=1e-9)
    assert set(parts) == {"nce", "reg", "order", "energy"}


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_earlier_state_is_of_the_same_pair(source, tmp_path):
    task = make_task(source, tmp_path)
    batch = make_batch(64)
    stacked, delta, _, unmoved = task.states(batch)
    noise = RowNoise(0, batch.rows)
    pair = walk(batch.tokens, task.source, task.schedule, ANCHOR, noise)
    t = positive_times(batch.rows, 0, 0.1, noise)
    assert torch.equal(stacked[:, 0], pair.at(t))
    for b in range(64):
        earlier = min(t[b].item(), max(t[b].item() - delta[b].item(), 0.01))
        expected = torch.where(pair.u[b] < earlier, batch.tokens[b], pair.x_0[b])
        expected[:ANCHOR] = batch.tokens[b, :ANCHOR]
        assert torch.equal(stacked[b, 1], expected)
    differs = stacked[:, 0] != stacked[:, 1]
    assert torch.equal(stacked[:, 0][differs], batch.tokens[differs])  # what is gone was the text's own
    assert torch.equal(unmoved, ~differs.any(1))
    assert delta.min() >= 0.05
    assert delta.max() <= 0.5


def test_a_share_of_the_positives_is_clean():
    rows = torch.arange(20_000)
    t = positive_times(rows, 0, 0.1, RowNoise(0, rows))
    assert (t == 1).double().mean().item() == pytest.approx(0.1, abs=0.01)
    assert torch.equal(t[t < 1], row_times(rows, 0)[t < 1])
    assert (positive_times(rows, 0, 1.0, RowNoise(0, rows)) == 1).all()


def test_rows_weigh_the_same_in_parts_and_in_the_whole(tmp_path):
    task = make_task("uniform", tmp_path)
    whole, _ = task.loss(task.model, make_batch(8), 0)
    parts = [task.loss(task.model, make_batch(4, first), 0)[0] for first in (0, 4)]
    assert whole.item() == pytest.approx((parts[0] + parts[1]).item() / 2, rel=1e-12)


def test_gradients_reach_the_compass_and_stop_at_the_teacher(tmp_path):
    task = make_task("uniform", tmp_path)
    task.loss(task.model, make_batch(), 0)[0].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in task.model.parameters())
    assert all(p.grad is None for p in task.negatives.kit.teacher.net.parameters())
