"""No step makes the host wait for the device.

Without a GPU this is watched from inside torch: a step runs on the CPU by its kernels (Triton's interpreter), every
tensor that would live on a GPU is followed from operation to operation, and whatever would have the host wait for one
(reading a number, counting what is not zero) or would copy fresh host memory to one fails.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from step_parts import MAKERS, batch_of, compass
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tsdfm import kernels
from tsdfm.compass import negatives
from tsdfm.distil import chain, floor, midpoint
from tsdfm.tokens.loader import Batch, HostBatch

CPU = torch.device("cpu")
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "bincount", "masked_select", "_unique2")


class Watch(TorchDispatchMode):
    """Follows tensors of the pretended device; `found` are the operations that would wait for it.

    What is made on a device that is named may be of either kind, and is of the kind it is first used with.
    """

    def __init__(self, *device: Any) -> None:
        super().__init__()
        self.found: list[str] = []
        self.kept: dict[int, Tensor] = {}  # of the device; kept alive, so that no id is used twice
        self.open: dict[int, Tensor] = {}  # of either kind
        self.send(*device)

    def send(self, *values: Any) -> Any:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self.kept[id(value)] = value
        return values[0] if values else None

    def there(self, value: Tensor) -> bool:
        base = value._base
        return id(value) in self.kept or (base is not None and id(base) in self.kept)

    def either(self, values: tuple[float, ...]) -> Tensor:
        """A constant, of which host and device each have one."""
        made = torch.tensor(values, dtype=torch.float64)
        self.open[id(made)] = made
        return made

    def settle(self, given: list[Tensor]) -> bool:
        """Are these tensors the device's? Those of either kind are from now on."""
        if not any(self.there(x) for x in given):
            return False
        for x in given:
            if id(x) in self.open:
                self.send(self.open.pop(id(x)))
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        out, name = func(*args, **kwargs), func.overloadpacket.__name__
        if self.settle(given):
            self.send(out)
            indices = args[1] if name in ("index", "index_put", "index_put_") else ()
            if name in WAITS or any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices):
                self.found.append(name)
            host = [tuple(x.shape) for x in given if x.ndim > 0 and not self.there(x)]
            if host:
                self.found.append(f"{name} with host memory {host[0]}")
        elif (given or kwargs.get("device") is not None) and all(id(x) in self.open for x in given):
            self.open |= {id(x): x for x in tree_leaves(out) if isinstance(x, Tensor)}
        return out


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`watch(learner, batch, step)`: what would wait in a step."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    if torch.cuda.is_available():
        pytest.skip("the next test sees it for real")
    plain = interpreter.GridExecutor.__call__

    def apart(self: Any, *args: Any, **more: Any) -> Any:
        watches[-1].settle([x for x in tree_leaves((args, more)) if isinstance(x, Tensor)])
        with _disable_current_modes():
            return plain(self, *args, **more)

    watches: list[Watch] = []
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", apart)

    def run(learner: Any, batch: HostBatch, step: int) -> list[str]:
        batch = HostBatch(batch.tokens, batch.rows.clone(), batch.numbers)  # on a GPU the two would not be one
        owned = [*learner.plain.parameters(), *learner.plain.buffers(), *learner.ema.module.parameters()]
        owned += [*learner.ema.module.buffers(), *learner.optimiser.state().values(), batch.tokens, batch.rows]
        for net in (getattr(getattr(learner.task, "rollout", None), "compass", None), teacher_of(learner.task)):
            owned += [*net.net.parameters(), *net.net.buffers()] if net is not None else []
        renewed = getattr(getattr(learner.task, "teacher", None), "net", None)
        owned += [*renewed.parameters(), *renewed.buffers()] if renewed is not None else []
        held = getattr(getattr(learner.task, "rollout", None), "held", None)
        seen = Watch(*owned, *frequency_of(learner.task), *([] if held is None else [held]))
        watches.append(seen)

        def near(value: Tensor, other: Tensor) -> Tensor:
            return seen.send(value.clone()) if seen.there(other) and not seen.there(value) else value

        for module in (midpoint, chain, floor):
            monkeypatch.setattr(module, "near", near)
        monkeypatch.setattr(negatives, "constant", lambda values, device: seen.either(values))
        with kernels.forced(), seen:
            learner.update(batch, step)
        return seen.found

    return run


def teacher_of(objective: Any) -> Any:
    made = getattr(objective, "negatives", None)
    return made.kit.teacher if made is not None else None


def frequency_of(objective: Any) -> list[Tensor]:
    made = getattr(objective, "negatives", None)
    bins = made.kit.frequency if made is not None else None
    return [] if bins is None else [bins.members, bins.start, bins.size, bins.bin_of, bins.place]


@pytest.mark.parametrize("name", ["fs-dfm", "ts-dfm", "ts-dfm-reverse", "ts-dfm-mdlm", "ts-dfm-duo", "teacher", "sdtt"])
def test_steps_do_not_wait(name: str, watch: Any) -> None:
    assert watch(MAKERS[name](CPU), batch_of(1, CPU), 1) == []


WITHOUT_TEACHER = ("time_downstep=4", "random_replace=2", "frequency_replace=2", "token_repeat=2")


def test_compass_steps_do_not_wait(watch: Any) -> None:
    assert watch(compass(CPU, mixture=WITHOUT_TEACHER), batch_of(1, CPU), 1) == []


def test_where_compass_steps_wait(watch: Any) -> None:
    """Once for the positions at which velocity_step can move, and once more if the feed gives no numbers."""
    assert watch(compass(CPU), batch_of(1, CPU), 1) == ["nonzero"]
    learner = compass(CPU)
    states = learner.task.states
    learner.task.states = lambda batch: states(Batch(batch.tokens, batch.rows))
    assert watch(learner, batch_of(1, CPU), 1) == ["bincount", "nonzero"]


def test_numbers_on_the_host_change_nothing() -> None:
    objective, batch = compass(CPU).task, batch_of(3, CPU)
    for mine, theirs in zip(objective.states(batch), objective.states(Batch(batch.tokens, batch.rows)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["fs-dfm", "ts-dfm", "ts-dfm-mdlm", "ts-dfm-duo", "teacher", "compass", "sdtt"])
def test_nothing_waits_on_a_gpu(name: str) -> None:
    device = torch.device("cuda")
    learner = compass(device, mixture=WITHOUT_TEACHER) if name == "compass" else MAKERS[name](device)
    batches = [batch_of(step, device) for step in range(4)]
    for step in (0, 1, 2):  # constants are sent, kernels compiled, pinned memory got hold of
        learner.update(batches[step], step)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.update(batches[3], 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
