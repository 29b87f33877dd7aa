"""The kernel of the noise gives the bits of `RowNoise`'s own code."""

from __future__ import annotations

import pytest
import torch

from tsdfm import kernels
from tsdfm.flow import RowNoise
from tsdfm.flow.noise import uniforms
from tsdfm.kernels import noise_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("stream", [0, 3, 1 << 20])
def test_same_bits(stream: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch = noise_triton.launch
    monkeypatch.setattr(noise_triton, "launch", lambda *given: launched.append(given) or launch(*given))
    rows, pick = torch.tensor([0, 5, 1_000_003], device=DEVICE), torch.tensor([2, 0], device=DEVICE)
    plain, mine = RowNoise(11, rows, stream), RowNoise(11, rows, stream)
    for shape in ((3, 7), (3, 2, 40, 30), (3,)):
        with kernels.without("noise"):
            expected = plain.uniform(shape)
        with kernels.forced("noise"):
            assert torch.equal(mine.uniform(shape), expected)
    with kernels.without("noise"):
        expected = plain.select(pick).uniform((2, 5))
    with kernels.forced("noise"):
        assert torch.equal(mine.select(pick).uniform((2, 5)), expected)
    assert len(launched) == 4


def test_several_draws_of_a_row_are_one_launch() -> None:
    plain, mine = (RowNoise(-3, torch.tensor([7], device=DEVICE), draws=2) for _ in range(2))
    with kernels.without("noise"):
        expected = uniforms(plain, 4, (1, 5, 2), DEVICE)
        after = plain.uniform((1, 3))
    assert not torch.equal(expected[0], expected[1])
    with kernels.forced("noise"):
        assert torch.equal(uniforms(mine, 4, (1, 5, 2), DEVICE), expected)
        assert torch.equal(mine.uniform((1, 3)), after)


def test_other_precisions_do_without_the_kernel() -> None:
    rows = torch.arange(4, device=DEVICE)
    with kernels.forced("noise"):
        narrow = RowNoise(1, rows).uniform((4, 9), torch.float32)
    with kernels.without("noise"):
        assert torch.equal(RowNoise(1, rows).uniform((4, 9), torch.float32), narrow)
