"""The hot path's noise has the bits of `RowNoise`."""

from __future__ import annotations

import pytest
import torch

from tsdfm import kernels
from tsdfm.flow import RowNoise
from tsdfm.kernels.noise import QuietNoise, quiet

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("stream", [0, 3, 1 << 20])
@pytest.mark.parametrize("by_kernel", [False, True])
def test_same_bits(stream: int, by_kernel: bool) -> None:
    if by_kernel:
        pytest.importorskip("triton")
    rows = torch.tensor([0, 5, 1_000_003], device=DEVICE)
    plain, mine = RowNoise(11, rows, stream), QuietNoise(11, rows, stream)
    with kernels.forced("noise") if by_kernel else kernels.without("noise"):
        for shape in ((3, 7), (3, 2, 40, 30), (3,)):
            assert torch.equal(plain.uniform(shape), mine.uniform(shape))
        pick = torch.tensor([2, 0], device=DEVICE)
        assert torch.equal(plain.select(pick).uniform((2, 5)), mine.select(pick).uniform((2, 5)))
        assert torch.equal(quiet(plain).uniform((3, 4)), plain.uniform((3, 4)))
    assert isinstance(mine, RowNoise)
