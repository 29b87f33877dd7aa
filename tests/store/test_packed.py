"""coded, int8 and bf16: what is stored, how far it is from what was, and what is refused."""

from __future__ import annotations

import zlib

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.store.packed import LEAST, has_differences, pack, to_int8, unpack


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
    with pytest.raises(UserError, match="without its scale"):  # would make a matrix of another size
        unpack({"w": torch.zeros(2, 1, dtype=torch.int8), "w/scale": torch.ones(1, 9)})
    with pytest.raises(UserError, match=r"w is stored as torch\.int64"):
        unpack({"w": torch.zeros(2, dtype=torch.int64)})


def numbers_in(stream: torch.Tensor) -> torch.Tensor:
    """What a stream holds, read without our own code."""
    return torch.frombuffer(bytearray(zlib.decompress(stream.numpy().tobytes(), -15)), dtype=torch.int8)


@pytest.mark.parametrize("coarse", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("shape", [(64, 64), (4, 32, 48), (300, 16)])
def test_coded_steps_are_as_coarse_as_asked(shape: tuple[int, ...], coarse: float) -> None:
    weights = noise(*shape) * torch.logspace(-6, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
    stored = pack({"w": weights}, "coded", coarse=coarse)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {"w": torch.uint8, "w/scale": torch.bfloat16}
    step = stored["w/scale"].float()
    assert step.shape == (*shape[:-1], 1)
    asked = torch.maximum(
        coarse * weights.square().mean(-1, keepdim=True).sqrt(), weights.abs().amax(-1, keepdim=True) / 127
    )
    assert bool((asked <= step).all())
    assert bool((step <= 1.01 * asked).all())
    back = unpack(stored)["w"]
    assert torch.equal(back, numbers_in(stored["w"]).view(shape).float() * step)
    moved = (back - weights).abs() / step
    assert 0.4 < float(moved.max()) <= 0.5001


def test_a_coarser_step_takes_fewer_bytes_and_never_more_than_int8() -> None:
    weights = {"w": noise(256, 256)}
    sizes = [pack(weights, "coded", coarse=coarse)["w"].numel() for coarse in (0.0, 0.05, 0.1, 0.2, 0.4)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < 0.96 * 256 * 256
    bits = [8 * size / 256**2 for size in sizes[2:]]  # a normal number in steps of c takes log₂(√(2πe) / c) bits
    assert bits == pytest.approx([5.37, 4.37, 3.37], abs=0.06)


def test_what_is_near_the_teacher_is_stored_as_a_difference() -> None:
    teacher = {"near": noise(128, 64), "far": noise(128, 64, seed=1), "other": noise(64, 128, seed=2)}
    base = unpack(pack(teacher, "coded", coarse=0.05))
    student = {
        "near": teacher["near"] + 0.05 * noise(128, 64, seed=3),
        "far": noise(128, 64, seed=4),
        "other": noise(128, 64, seed=5),  # of another shape
        "new": noise(128, 64, seed=6),
    }
    stored = pack(student, "coded", coarse=0.05, base=base)
    assert {name for name in stored if "/" in name} == {"near/delta", "far/scale", "other/scale", "new/scale"}
    assert has_differences(stored)
    assert not has_differences(pack(student, "coded", coarse=0.05))
    alone = pack(student, "coded", coarse=0.05)
    assert stored["near"].numel() < 0.5 * alone["near"].numel()
    back = unpack(stored, base)
    step = stored["near/delta"].float()
    assert torch.equal(back["near"], numbers_in(stored["near"]).view(128, 64).float() * step + base["near"])
    for name, weight in student.items():
        moved = (back[name] - weight).abs() / stored.get(name + "/delta", alone[name + "/scale"]).float()
        assert float(moved.max()) <= 0.5001, name
    with pytest.raises(UserError, match="near is a difference from a teacher's that is not there"):
        unpack(stored)
    with pytest.raises(UserError, match="near is a difference from a teacher's that is not there"):
        unpack(stored, {"near": base["other"]})


def test_rows_far_from_the_teacher_are_not_cut_off() -> None:
    """Where a difference is beyond the last level, the matrix is stored by itself, however short the rest would be."""
    teacher = noise(128, 64)
    student = teacher.clone()
    student[5] *= -0.9
    stored = pack({"w": student}, "coded", base={"w": teacher * 3})
    assert "w/scale" in stored
    assert float(((unpack(stored)["w"] - student).abs() / stored["w/scale"].float()).max()) <= 0.5001


def test_zeros_and_what_is_left_alone_in_code() -> None:
    weights = {"zeros": torch.zeros(64, 64), "vector": noise(LEAST), "small": noise(63, 65)}
    back = unpack(pack(weights, "coded", coarse=0.1))
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


def broken(how: str) -> dict[str, torch.Tensor]:
    stored = pack({"w": noise(64, 64)}, "coded")
    if how == "garbage":
        stored["w"] = torch.full((4000,), 255, dtype=torch.uint8)
    elif how == "short":
        stored["w"] = stored["w"][:-5]
    elif how == "longer":
        stored["w"] = torch.cat([stored["w"], stored["w"][:3]])
    elif how == "bomb":  # a hundred million numbers in a hundred thousand bytes
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        stream = b"".join(coder.compress(bytes(10**6)) for _ in range(100)) + coder.flush()
        stored["w"] = torch.frombuffer(bytearray(stream), dtype=torch.uint8)
    elif how == "rows":
        stored["w/scale"] = torch.ones(63, 1, dtype=torch.bfloat16)
    elif how == "no rows":
        stored["w/scale"] = torch.ones(0, 1, dtype=torch.bfloat16)
    elif how == "wide":
        stored["w/scale"] = torch.ones(64, 64, dtype=torch.bfloat16)
    elif how == "dtype":
        stored["w/scale"] = stored["w/scale"].double()
    elif how == "both":
        stored["w/delta"] = stored["w/scale"]
    elif how == "none":
        del stored["w/scale"]
    return stored


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("garbage", "w cannot be decoded"),
        ("short", "does not end where its stream does"),
        ("longer", "does not end where its stream does"),
        ("bomb", "does not end where its stream does"),
        ("rows", "4096 numbers for 63 rows"),
        ("no rows", "4096 numbers for 0 rows"),
        ("wide", "without its scale"),
        ("dtype", "without its scale"),
        ("both", "without its scale"),
        ("none", "without its scale"),
    ],
)
def test_a_broken_code_is_one_clear_line(how: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        unpack(broken(how))
    assert "\n" not in str(caught.value)
