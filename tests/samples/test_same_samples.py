"""The same samples for ever: what a fixed network writes for a seed is stored here, and no speed-up may change it.

The weights are a formula in whole numbers and the network is float64, so no version of torch has a say: a last bit that
differs is far below what a draw of 53 random bits can notice. The stored hashes were taken when every step still
computed the logits of every position and `jump.__call__` drew at all of them. One has changed since (`GRID`, uniform):
no text begins with an end of text among its noise any more.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
import torch
from tiny_nets import tiny_spec
from torch import Tensor, nn

from tsdfm.distil.settings import NavigateSettings
from tsdfm.flow import RowNoise, grid, solve
from tsdfm.nn.velocity import Velocity
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel
from tsdfm.tokens.tokenizer import ByteTokenizer

MULTIPLIER, MODULUS = 2654435761, 2**32


def formula_(net: nn.Module, size: float = 1.2) -> nn.Module:
    """Weight k, counted through the whole network, is size · ((k · 2654435761 mod 2³²)/2³² − ½); norms stay 1.

    The rates of the sinusoids, which torch works out in float32 by its own exp and pow, become 10 000^(−i/n), float64.
    """
    first = 1
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
                continue
            k = torch.arange(first, first + weight.numel(), dtype=torch.int64)
            values = (k * MULTIPLIER % MODULUS).to(torch.float64) / MODULUS - 0.5
            weight.copy_((values * size).view_as(weight))
            first += weight.numel()
        for rates in net.buffers():
            values = [math.exp(-math.log(10_000.0) * i / len(rates)) for i in range(len(rates))]
            rates.copy_(torch.tensor(values, dtype=torch.float64))
    return net


def fixed_model(source: str, *, step_size: bool = False, schedule: str = "poly:1") -> TextModel:
    spec = tiny_spec(source=source, step_size=step_size, schedule=schedule, length=24)
    net = spec.network().double()
    formula_(net).eval().requires_grad_(False)
    return TextModel(Velocity(spec, net, spec.flow_source(), spec.flow_schedule()), ByteTokenizer(), "teacher")


def digest(*tensors: Tensor) -> str:
    """The first half of the SHA-256 of the tokens, written out in decimals."""
    plain = ";".join(str(x.tolist()) for x in tensors)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


SHAPED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
WAYS: dict[str, dict[str, Any]] = {
    "free": {},
    "prefix": {"prefix": "Mia has"},
    "shaped": SHAPED,
    "shaped prefix": {"prefix": "Mia has", **SHAPED},
    "infill": {"infill": "A{5}B{2}C", "temperature": 0.8},
    "many": {"steps": 50},
}
STORED: dict[tuple[str, str, str], str] = {
    ("uniform", "euler", "free"): "d98636b51142bb78075f6e03aaf0c2fe",
    ("uniform", "euler", "prefix"): "dc3c9428b644547e42a089437bfa4766",
    ("uniform", "euler", "shaped"): "b018d12cfb9720a7376cf610130401fa",
    ("uniform", "euler", "shaped prefix"): "80ac1a043ca50e8b3b02a1d32e997c3e",
    ("uniform", "euler", "infill"): "696ede78eed7943e5bf765988b35e08b",
    ("uniform", "euler", "many"): "bd7788392bbceec4cb157ed5f20cd696",
    ("uniform", "cumulative", "free"): "f85071b65451cd932fdb4252cadd58f7",
    ("uniform", "cumulative", "prefix"): "320de5d9c9f16541cc4381fd2a0457ff",
    ("uniform", "cumulative", "shaped"): "7e121d7004dfa6e8772b1c876798d854",
    ("uniform", "cumulative", "shaped prefix"): "f43fe7bfbe3cba2ce4d4e861416dce20",
    ("uniform", "cumulative", "infill"): "94eedc7d885f4bf8228abde56380231c",
    ("uniform", "cumulative", "many"): "dc66e5148297b1291f6b186581c13e98",
    ("mask", "euler", "free"): "0555adf2e637952ae4152f7f085bf42f",
    ("mask", "euler", "prefix"): "6c94b7beeb849d48771ec0d5b4e77876",
    ("mask", "euler", "shaped"): "41395dea67879a2929146f61d3ea2f61",
    ("mask", "euler", "shaped prefix"): "6d51bb4ce15381d48f67eaa3285b9a66",
    ("mask", "euler", "infill"): "4370420ecb8248875713df6b86adfa32",
    ("mask", "euler", "many"): "5414e3ab4401f1fe40c9a9bb9bea47ea",
    ("mask", "cumulative", "free"): "5df2421d53e9bbfcf005288b3bade906",
    ("mask", "cumulative", "prefix"): "d5aa3a6ce9528413cee73e6e78e1e16b",
    ("mask", "cumulative", "shaped"): "d3301507e4c65abdeb1bb09ccb4dbc08",
    ("mask", "cumulative", "shaped prefix"): "e2dea35aca52e67a6f503970ee87a780",
    ("mask", "cumulative", "infill"): "c921e51b7b9994add565e94f781d0bb9",
    ("mask", "cumulative", "many"): "90168081be689a63adc15e94cc5db04d",
}


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("jump", ["euler", "cumulative"])
@pytest.mark.parametrize("way", list(WAYS))
def test_samples_are_those_stored(source: str, jump: str, way: str) -> None:
    model = fixed_model(source, step_size=jump == "cumulative", schedule="poly:1" if way == "free" else "poly:2")
    made = model.sample(n=6, seed=11, jump=jump, **{"steps": 8, **WAYS[way]})
    assert digest(made.tokens) == STORED[source, jump, way]


GRID: dict[str, str] = {
    "uniform": "dab5bcd3c231b19475a1fa0f54d88115",
    "mask": "f91509f6ff873065c2a684df875484b5",
}


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_a_grid_of_few_and_uneven_times(source: str) -> None:
    """One step, which is the last one too; a long first step; and a step in which almost nothing may move."""
    model = fixed_model(source)
    made = [model.sample(n=4, seed=5, times=times).tokens for times in ((0.0, 1.0), (0.0, 0.9, 0.901, 1.0))]
    assert digest(*made) == GRID[source]


WATCHED: dict[str, tuple[str, list[float]]] = {
    "uniform": (
        "0ad9cd7219404ed25d912aeffa9e1b06",
        [0.036962639540433884, 0.03736919164657593, 0.04075777158141136, 0.03670523688197136],
    ),
    "mask": (
        "82d70644cb9c1b1fed8d5f3ce32fd0f6",
        [0.02116699516773224, 0.02194419503211975, 0.022700801491737366, 0.02474590577185154],
    ),
}


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_trajectories_are_those_stored(source: str) -> None:
    """The states of every step, and the confidence, which is a mean over all positions, given ones included."""
    made = fixed_model(source).sample(n=2, steps=4, seed=1, trajectory=True, prefix="Mia has").trajectory
    assert made is not None
    states = torch.tensor([[state for state, _ in row.states()] for row in made.rows])
    assert digest(states) == WATCHED[source][0]
    assert [step.confidence for step in made.rows[0].steps] == pytest.approx(WATCHED[source][1], rel=1e-6)


GUIDED: dict[str, str] = {
    "uniform": "d28d3b1d6eccdac4f9e11c3cb6deb6d7",
    "mask": "bb2e4a468ed9560f71b872294b725b27",
}


class Ordered:
    """An energy that can be worked out by hand."""

    def energy(self, tokens: Tensor) -> Tensor:
        return (tokens.double() * torch.arange(1, tokens.shape[1] + 1)).sum(1) % 97 / 8


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_guided_samples_are_those_stored(source: str) -> None:
    guide = Guide("sequence-to-token", Ordered(), NavigateSettings(k=3))
    made = fixed_model(source).sample(n=3, steps=5, seed=2, prefix="Mia", guide=guide)
    assert digest(made.tokens) == GUIDED[source]


ROWS: dict[str, str] = {
    "uniform": "e172212b72379ee085ba72206b3dad1d",
    "mask": "fc3c7d152a549aad0e9262afe03644d6",
}


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_rows_with_givens_of_their_own(source: str) -> None:
    """`given` [B, L], another one for each row, straight through `solve`."""
    model = fixed_model(source)
    noise, numbers = RowNoise(7, torch.arange(4)), torch.arange(4 * 24).view(4, 24)
    x_0 = model.velocity.source.draw((4, 24), noise, torch.device("cpu"))
    held = numbers * 7 % 5 < 2
    made = solve(
        model.velocity, x_0, grid(6), model.jump("auto"), noise, given=held, given_tokens=numbers, temperature=0.9
    )
    assert digest(made.tokens) == ROWS[source]
