"""int8 and bf16: what is stored, how far it is from what was, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.store.packed import LEAST, pack, to_int8, unpack


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rows_by_hand() -> None:
    whole, scale = to_int8(torch.tensor([[12.7, -3.14, 0.26, 0.0], [0.0, 0.0, 0.0, 0.0], [-254.0, 3.0, 1.0, -0.9]]))
    assert whole.tolist() == [[127, -31, 3, 0], [0, 0, 0, 0], [-127, 2, 0, 0]]  # 3/2 and 1/2 round to the even one
    assert scale[[0, 2], 0].tolist() == pytest.approx([0.1, 2.0])
    back = unpack({"w": whole, "w/scale": scale})["w"]
    assert back[0].tolist() == pytest.approx([12.7, -3.1, 0.3, 0.0])
    assert back[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("shape", [(64, 64), (4, 32, 48), (300, 16)])
def test_no_weight_moves_further_than_half_a_step(shape: tuple[int, ...]) -> None:
    weights = noise(*shape) * torch.logspace(-6, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
    stored = pack({"w": weights}, "int8")
    assert stored["w"].dtype == torch.int8
    assert stored["w/scale"].shape == (*shape[:-1], 1)
    moved = (unpack(stored)["w"] - weights).abs()
    assert bool((moved <= stored["w/scale"] * 0.5001).all())
    assert float((moved / stored["w/scale"]).max()) > 0.4  # the bound is met, so a coarser step would be seen
    largest = weights.abs().amax(-1)
    torch.testing.assert_close(unpack(stored)["w"].abs().amax(-1), largest, rtol=1e-6, atol=0)


def test_packing_what_was_packed_changes_nothing_more() -> None:
    once = pack({"w": noise(80, 80)}, "int8")
    twice = pack(unpack(once), "int8")
    assert torch.equal(once["w"], twice["w"])


def test_what_is_left_alone() -> None:
    weights = {"vector": noise(LEAST), "small": noise(63, 65), "large": noise(64, 64)}
    for kind in ("int8", "bf16"):
        stored = pack(weights, kind)
        for name in ("vector", "small"):
            assert stored[name].dtype == torch.float32
            assert torch.equal(stored[name], weights[name])
        assert stored["large"].dtype == (torch.int8 if kind == "int8" else torch.bfloat16)
        assert ("large/scale" in stored) == (kind == "int8")
        assert unpack(stored).keys() == weights.keys()


def test_bf16_keeps_eight_bits() -> None:
    weights = noise(64, 64)
    back = unpack(pack({"w": weights}, "bf16"))["w"]
    assert torch.equal(back, weights.bfloat16().float())
    share = ((back - weights) / weights).abs().max()
    assert 2**-10 < float(share) <= 2**-8


def test_refusals() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="w holds numbers that are not finite"):
            pack({"w": torch.full((64, 64), bad)}, "int8")
    with pytest.raises(UserError, match="int8 or bf16, not 'int4'"):
        pack({}, "int4")
    with pytest.raises(UserError, match="without its scale"):
        unpack({"w": torch.zeros(2, 2, dtype=torch.int8)})
