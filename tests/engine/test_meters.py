"""Means of what steps measured, by hand: bad steps left out, names that come and go, and a resumed sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tsdfm.engine.distributed import Processes
from tsdfm.engine.meters import Meters

GOOD, BAD = torch.tensor(False), torch.tensor(True)


def world() -> Processes:
    return Processes(device=torch.device("cpu"))


def values(**given: float) -> dict[str, Tensor]:
    """Of either dtype, as a step has them."""
    kinds = (torch.float32, torch.float64)
    return {name: torch.tensor(value, dtype=kinds[n % 2]) for n, (name, value) in enumerate(given.items())}


def test_means_leave_bad_steps_out() -> None:
    meters = Meters(world())
    meters.add(values(loss=2.0, norm=1.0), GOOD)
    meters.add(values(loss=math.nan, norm=math.inf), BAD)
    meters.add(values(loss=4.0, norm=0.5), GOOD)
    assert meters.report() == {"loss": 3.0, "norm": 0.75, "skipped": 1.0}
    meters.add(values(loss=8.0, norm=1.0), GOOD)
    assert meters.report() == {"loss": 8.0, "norm": 1.0, "skipped": 1.0}


def test_names_may_come_and_go() -> None:
    meters = Meters(world())
    meters.add(values(loss=2.0), GOOD)
    meters.add(values(loss=4.0, probe=6.0), GOOD)
    meters.add(values(probe=2.0, loss=6.0), GOOD)
    assert meters.report() == {"loss": 4.0, "probe": pytest.approx(8 / 3), "skipped": 0.0}


def test_a_resumed_sum_has_the_same_digits() -> None:
    steps = [values(loss=0.1 * n, norm=1 / (n + 3)) for n in range(6)]
    whole, first, second = Meters(world()), Meters(world()), Meters(world())
    for step in steps:
        whole.add(step, GOOD)
    for step in steps[:4]:
        first.add(step, GOOD)
    second.load(first.state())
    for step in steps[4:]:
        second.add(step, GOOD)
    assert second.state() == whole.state()
    assert second.report() == whole.report()


def test_nothing_measured() -> None:
    meters = Meters(world())
    meters.add({}, GOOD)
    again = Meters(world())
    again.load(meters.state())
    assert again.report() == {"skipped": 0.0}
