"""The objective: times by row number, the loss against a plain float64 reference, the held-out bound."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from training import DFM
from tsdfm.engine.distributed import Processes
from tsdfm.engine.settings import LoopSettings
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, row_times
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.teacher.run import spec_for
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows, valid_rows

NET = NetSettings(width=16, depth=1, heads=2, cond=8, dropout=0.0)
VOCAB, LENGTH = 11, 6


def make_task(anchor: int = 1, **given: Any) -> Any:
    settings = DFMSettings(tokens=Path("t"), out=Path("o"), net=NET, loop=LoopSettings(seed=5, batch=4), **given)
    spec = VelocitySpec(
        shape=NET.shape(),
        vocab=VOCAB,
        source=settings.source,
        schedule=settings.schedule,
        length=LENGTH,
        anchor=anchor,
        tokenizer="",
    )
    return DFM.task(settings, spec, None)


class Seen(torch.nn.Module):
    """A model of fixed random logits that remembers what it was asked."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.logits = torch.randn(rows, LENGTH, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.x_t, self.t = x_t, t
        return self.logits


def make_batch(rows: int = 40, first: int = 0) -> Batch:
    made = torch.Generator().manual_seed(2)
    return Batch(torch.randint(0, VOCAB, (rows, LENGTH), generator=made), torch.arange(first, first + rows))


def reference(task: Any, model: Seen, batch: Batch, kappa: Any, slope: Any) -> float:
    """The sheet's formula, position by position, in plain Python."""
    total, terms = 0.0, 0
    times = (row_times(batch.rows, 5) ** task.settings.time_power).tolist()
    for b, t in enumerate(times):
        t = min(t, 1 - 1e-5)
        for i in range(task.spec.anchor, LENGTH):
            weights = [math.exp(value) for value in model.logits[b, i].tolist()]
            p = [weight / math.fsum(weights) for weight in weights]
            x_1, x_t = int(batch.tokens[b, i]), int(model.x_t[b, i])
            terms += 1
            if task.settings.loss == "cross-entropy":
                total -= math.log(p[x_1])
            else:
                inside = (p[x_t] if x_t < VOCAB else 0.0) - (x_1 == x_t) + (x_1 != x_t) * math.log(p[x_1])
                total -= slope(t) / (1 - kappa(t)) * inside
    return total / terms


@pytest.mark.parametrize("loss", ["cross-entropy", "generalised-kl"])
@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("anchor", [0, 1])
@pytest.mark.parametrize(
    ("schedule", "kappa", "slope", "power"),
    [("poly:1", lambda t: t, lambda t: 1.0, 1.0), ("poly:2", lambda t: t * t, lambda t: 2 * t, 0.5)],
)
def test_loss_against_a_reference(
    loss: str, source: str, anchor: int, schedule: str, kappa: Any, slope: Any, power: float
) -> None:
    task = make_task(anchor, loss=loss, source=source, schedule=schedule, time_power=power)
    batch = make_batch()
    model = Seen(len(batch.rows))
    found, extras = task.loss(model, batch, 0)
    assert found.item() == pytest.approx(reference(task, model, batch, kappa, slope), rel=1e-9)
    assert extras == {}
    assert found.dtype == torch.float64


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_state_is_on_the_path(source: str) -> None:
    """What the model is shown: the row's time, x_1 with probability κ(t), and the source elsewhere."""
    task, batch, model = make_task(source=source, schedule="poly:2"), make_batch(4000), Seen(4000)
    task.loss(model, batch, 0)
    t = row_times(batch.rows, 5)
    assert torch.equal(model.t, t.float())
    assert torch.equal(model.x_t[:, 0], batch.tokens[:, 0])  # the anchor is never noise
    free, data = model.x_t[:, 1:], batch.tokens[:, 1:]
    if source == "mask":
        assert ((free == data) | (free == VOCAB)).all()
    chance = t**2 + (0 if source == "mask" else (1 - t**2) / VOCAB)
    same = (free == data).double().mean(-1)
    for low in (0.0, 0.25, 0.5, 0.75):  # quarters of time
        here = (t >= low) & (t < low + 0.25)
        wanted = chance[here]
        spread = (wanted * (1 - wanted)).sum().div(LENGTH - 1).sqrt() / here.sum()
        assert (same[here].mean() - wanted.mean()).abs() < 4.5 * spread


def test_the_loss_belongs_to_the_rows() -> None:
    """Parts of a batch average to the whole, whatever process they are on; other rows see other noise."""
    task = make_task()
    task.model = torch.nn.Module()
    batch = make_batch(8)
    whole = Seen(8)
    task.loss(whole, batch, 0)
    for part in (slice(0, 4), slice(4, 8)):
        half = Seen(4)
        task.loss(half, Batch(batch.tokens[part], batch.rows[part]), 9)
        assert torch.equal(half.x_t, whole.x_t[part])
        assert torch.equal(half.t, whole.t[part])
    later = Seen(8)
    task.loss(later, Batch(batch.tokens, batch.rows + 8), 0)
    assert not torch.equal(later.x_t, whole.x_t)


def test_the_clean_row_is_left_alone() -> None:
    task, batch = make_task(), make_batch(5)
    before = batch.tokens.clone()
    task.loss(Seen(5), batch, 0)
    assert torch.equal(batch.tokens, before)


@hypothesis_given(st.integers(0, 10**9), st.integers(0, 2**31), st.integers(2, 300))
def test_times_are_equidistributed(first: int, seed: int, count: int) -> None:
    """Any run of consecutive rows: no gap is larger than φ²/n, where independent draws would leave about ln(n)/n."""
    times = row_times(torch.arange(first, first + count), seed)
    assert ((times >= 0) & (times < 1)).all()
    ordered = times.sort().values
    gaps = torch.cat([ordered.diff(), (ordered[:1] + 1 - ordered[-1:])])
    assert gaps.max() < 2.7 / count
    assert gaps.min() > 0.3 / count


def test_times_depend_on_the_row_number_alone() -> None:
    rows = torch.arange(50)
    times = row_times(rows, 3)
    mixed = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_times(rows[mixed], 3), times[mixed])
    assert torch.equal(row_times(rows[7:8], 3), times[7:8])
    shifts = [(row_times(rows, seed)[0]).item() for seed in range(200)]
    assert len(set(shifts)) == 200
    assert abs(sum(shifts) / 200 - 0.5) < 4.5 / math.sqrt(12 * 200)


def test_the_network_depends_on_the_seed() -> None:
    one, same = make_task(), make_task()
    other = make_task()
    settings = dataclasses.replace(one.settings, loop=LoopSettings(seed=6, batch=4))
    other = DFM.task(settings, one.spec, None)
    assert torch.equal(one.model.embedding.weight, same.model.embedding.weight)
    assert not torch.equal(one.model.embedding.weight, other.model.embedding.weight)


def test_settings_that_make_no_sense() -> None:
    for wrong in ({"time_power": 0}, {"time_power": math.nan}, {"eval_rows": 0}, {"eval_times": 0}):
        with pytest.raises(UserError):
            make_task(**wrong)


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_held_out_bound(tokens: Path, source: str) -> None:
    """A network that knows nothing (zero logits) has a bound in closed form, given the draws."""
    rows = valid_rows(tokens)
    assert rows is not None
    loop = LoopSettings(seed=5, batch=4)
    settings = DFMSettings(tokens=tokens, out=Path("o"), net=NET, loop=loop, source=source, eval_rows=9, eval_times=3)
    task = DFM.task(settings, spec_for(settings, TokenRows(tokens, "train"), DFM), rows)
    task.bind(Context(ema=None, world=Processes()))
    found = task.evaluate(task.model.eval(), 0)
    vocab, last = rows.vocab_size, 1 - 1e-5
    picks = [i * len(rows) // 9 for i in range(9)]  # spread over the split
    x_1 = torch.from_numpy(rows.take(picks).astype("int64"))
    noise = RowNoise(5, torch.tensor(picks), stream=1)
    total = torch.zeros(9, dtype=torch.float64)
    for stratum in range(3):
        kappa = (stratum + noise.uniform((9,))) * last / 3
        x_0 = (noise.uniform(x_1.shape) * vocab).long() if source == "uniform" else torch.full_like(x_1, vocab)
        x_t = torch.where(noise.uniform(x_1.shape) < kappa[:, None], x_1, x_0)[:, 1:]
        arrived = x_t == x_1[:, 1:]
        p_t = torch.where(x_t == vocab, 0.0, 1 / vocab).double()
        loss = torch.where(arrived, 1 - p_t, math.log(vocab) - p_t)
        total += loss.mean(-1) / (1 - kappa) * last / 3
    assert found["elbo"] == pytest.approx(total.mean().item(), rel=1e-5)
    characters = sum(len(rows.tokenizer.first_document(row[1:])) for row in rows.take(picks))
    bits = total.sum().item() * (rows.length - 1) / math.log(2) / characters
    assert found["bits_per_character"] == pytest.approx(bits, rel=1e-5)


def test_the_bound_does_not_depend_on_the_batch(tokens: Path) -> None:
    rows, values = valid_rows(tokens), []
    for loop in (LoopSettings(batch=4), LoopSettings(batch=32), LoopSettings(batch=32, micro=1)):
        settings = DFMSettings(tokens=tokens, out=Path("o"), net=NET, loop=loop, eval_rows=7, eval_times=2)
        task = DFM.task(settings, spec_for(settings, TokenRows(tokens, "train"), DFM), rows)
        torch.nn.init.normal_(task.model.head.weight, generator=torch.Generator().manual_seed(0))
        task.bind(Context(ema=None, world=Processes()))
        values.append(task.evaluate(task.model.double().eval(), 0))
    assert values[1] == pytest.approx(values[0], rel=1e-9)
    assert values[2] == pytest.approx(values[0], rel=1e-9)


def test_no_held_out_rows() -> None:
    assert make_task().evaluate(torch.nn.Module(), 0) == {}
