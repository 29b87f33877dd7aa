"""Networks that are wrapped, not changed: the same answers, the same names, and the network as it was."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from toy_training import Denoise, Net, train

from tsdfm.engine.distributed import Processes
from tsdfm.engine.graphs import GraphMemory, Replayed, Trained
from tsdfm.engine.learner import Learner
from tsdfm.engine.log import read_metrics
from tsdfm.engine.runner import Compiled, Runner, body_of, is_recorded, quickened, wrapped
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import load_weights

X, T = torch.arange(18).view(3, 6) % 12, torch.tensor([0.2, 0.5, 0.7])


def ddit() -> DDiT:
    torch.manual_seed(0)
    net = DDiT(NetSettings(width=16, depth=1, heads=2, cond=8, dropout=0.0).shape(), vocab=12, tokens=13)
    nn.init.normal_(net.head.weight)
    return net.eval()


class Whole(nn.Module):
    """A network that is all body."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x).squeeze(-1)
        return out


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """torch.compile that traces, counts and runs what it traced."""
    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    return counter


def test_a_wrapped_network_answers_as_the_network_does() -> None:
    net = ddit()
    before, calls = {**vars(net)}, list[int]()

    def body(*inputs: Tensor | None) -> Tensor:
        calls.append(len(inputs))
        return net.hidden(*inputs)  # type: ignore[arg-type]

    other = wrapped(net, body)
    assert torch.equal(other(X, T), net(X, T))
    assert torch.equal(other.hidden(X, T), net.hidden(X, T))
    then = lambda hidden, head: (hidden * 2, head)  # noqa: E731
    (mine, head), (theirs, _) = other(X, T, None, then=then), net(X, T, then=then)
    assert torch.equal(mine, theirs)
    assert head is other.head is net.head
    assert calls == [2, 2, 3]
    assert other.vocab == 12  # and whatever else the network has
    assert other.state_dict().keys() == net.state_dict().keys()
    assert [*other.parameters()] == [*net.parameters()]
    assert vars(net) == before
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = other.no_such_thing


def test_train_and_eval_reach_the_network() -> None:
    net = ddit()
    other = wrapped(net, net.hidden)
    assert not other.training
    assert other.train().training
    assert net.training
    assert not other.eval().training
    assert not net.training


def test_a_network_without_a_head_is_all_body() -> None:
    net, x = Whole(), torch.ones(4, 3)
    assert body_of(net) == net.forward
    assert torch.equal(wrapped(net, net.forward)(x), net(x))


def test_one_code_for_each_size_or_for_all(compiler: CompileCounter) -> None:
    for sizes, codes in (("each", 4), ("any", 1), ("auto", 2)):
        torch._dynamo.reset()
        compiler.clear()
        body = Compiled(lambda x: x + 1, sizes)  # type: ignore[arg-type]
        for rows in (3, 4, 5, 6, 3):
            assert body(torch.ones(rows, 2)).sum() == 4 * rows
        assert compiler.frame_count == codes, sizes


def test_a_compiler_that_fails_is_done_without(recwarn: pytest.WarningsRecorder) -> None:
    def broken(*_: Any) -> Tensor:
        raise torch._dynamo.exc.InternalTorchDynamoError("no compiler here\nand more")

    body = Compiled(lambda x: x + 1)
    body.inner = broken
    for _ in range(3):
        assert body(torch.ones(1)).tolist() == [2.0]
    said = [str(w.message) for w in recwarn if "the network runs without" in str(w.message)]
    assert said == ["torch.compile failed, the network runs without: no compiler here"]


def test_a_frozen_network_is_quickened_once(compiler: CompileCounter) -> None:
    net, pool = ddit(), GraphMemory()
    recorded, compiled = quickened(net, pool), quickened(net, None)
    assert is_recorded(recorded)
    assert not is_recorded(compiled)
    assert not is_recorded(net)
    assert quickened(recorded, None) is recorded
    with torch.no_grad():
        for rows in (3, 2):
            torch.testing.assert_close(compiled(X[:rows], T[:rows]), net(X[:rows], T[:rows]))
    assert compiler.frame_count == 1


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_compiled_training_is_the_training_and_leaves_the_network_alone(
    tmp_path: Path, compiler: CompileCounter, dropout: float
) -> None:
    task = Denoise(Net(dropout=dropout), semi=True)
    own = {**vars(task.model)}.keys()
    mine = train(tmp_path / "mine", Processes(), made=task, loop={"compile": True})
    theirs = train(tmp_path / "theirs", Processes(), net={"dropout": dropout}, task={"semi": True})
    assert compiler.frame_count > 0
    assert [line["loss"] for line in read_metrics(tmp_path / "mine", "train")] == pytest.approx(
        [line["loss"] for line in read_metrics(tmp_path / "theirs", "train")], rel=1e-6
    )
    for which in ("model", "ema"):
        a, b = load_weights(mine, which), load_weights(theirs, which)
        assert a.keys() == b.keys()
        for name, value in a.items():
            torch.testing.assert_close(value, b[name], rtol=1e-5, atol=1e-6)
    assert vars(task.model).keys() == own
    assert task.context is not None
    assert isinstance(task.context.ema, Runner)


def learner(net: nn.Module, pool: GraphMemory | None = None, **loop: Any) -> Learner:
    settings = LoopSettings(batch=8, device="cpu", **loop)
    return Learner(Denoise(net), Processes(), settings, OptimSettings(ema=0.9), pool=pool)


def test_which_network_gets_which_body() -> None:
    plain = learner(Net())
    assert plain.model is plain.runner is plain.plain
    assert plain.ema is not None
    assert plain.average is plain.ema.module
    pool = GraphMemory()
    made = learner(Net(), pool)
    assert isinstance(made.runner, Runner)
    assert isinstance(made.average, Runner)
    assert isinstance(made.runner.body, Trained)
    assert isinstance(made.average.body, Replayed)
    assert made.runner.body.pool is made.average.body.pool is pool
    assert made.runner.net is made.plain
    parts = learner(Net(), pool, micro=4)
    assert parts.runner is parts.plain  # gradients of micro-batches add up: no recording
    whole = learner(Whole(), pool)
    assert whole.runner is whole.plain
    compiled = learner(Net(), pool, compile=True)
    assert isinstance(compiled.runner, Runner)
    assert isinstance(compiled.runner.body, Trained)
    assert isinstance(compiled.runner.body.fn, Compiled)
