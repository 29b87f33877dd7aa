"""Rows with a prompt: it is never noise and carries no loss, in every method; fine-tuning from another layout."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tsdfm
from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.distil.task import StudentTask
from tsdfm.engine.distributed import Processes
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Context
from tsdfm.methods import TextMethod, method, names
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest
from tsdfm.teacher.run import spec_for
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows, valid_rows
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

NET = NetSettings(width=24, depth=2, heads=2, cond=16, dropout=0.0)
V, L = 11, 9
GIVEN = torch.arange(L) < torch.tensor([1, 3, 7, 8])[:, None]  # the anchor alone, and prompts up to all but one token
METHODS = [name for name in names() if isinstance(method(name), TextMethod)]


def task_of(name: str, source: str) -> Any:
    found: Any = method(name)
    settings = found.settings(tokens=Path("t"), out=Path("o"), source=source, loop=LoopSettings(seed=5, batch=4))
    spec = VelocitySpec(
        shape=NET.shape(), vocab=V, schedule="poly:1", length=L, anchor=1, tokenizer="", source=source, **found.words()
    )
    return found.task(settings, spec, None)


class Told(torch.nn.Module):
    """A network whose hidden state is a table, in float64, that remembers what it was asked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(1)
        self.table = torch.randn(4, L, 6, generator=made, dtype=torch.float64).requires_grad_()
        self.head = torch.nn.Linear(6, width).double()

    def forward(self, x_t: torch.Tensor, *told: Any, then: Any = None) -> Any:
        self.x_t, self.told = x_t, told
        return self.head(self.table) if then is None else then(self.table, self.head)


EVERY = [(name, source) for name in METHODS for source in method(name).sources]


@pytest.mark.parametrize(("name", "source"), EVERY)
def test_a_prompt_is_never_noise_and_carries_no_loss(name: str, source: str) -> None:
    """The loss is the mean over rows of each row's own mean over its answer, and its gradient is 0 at what is given."""
    task = task_of(name, source)
    tokens = torch.randint(0, V, (4, L), generator=torch.Generator().manual_seed(2))
    batch, model = Batch(tokens, torch.arange(4), given=GIVEN), Told(V)
    loss, _ = task.loss(model, batch, 0)
    loss.backward()
    soft, x_t = model.x_t.dim() == 3, model.x_t
    if soft:  # laws over tokens, of which the first is x_1, with weights: all of it where that is given
        x_t = torch.where(model.told[-1][..., 0] == 1, x_t[..., 0], -1)
    assert torch.equal(x_t[GIVEN], tokens[GIVEN])
    assert not torch.equal(x_t, tokens)
    slope = model.table.grad
    assert slope is not None
    assert slope[GIVEN].abs().max() == 0
    assert slope[~GIVEN].abs().max() > 0
    if not soft and not hasattr(task.objective, "cart"):  # whose weights come from all that is known, prompts as well
        t, logits = task.objective.times(batch.rows, 5), model.head(model.table)
        free = [(~GIVEN[b]).nonzero()[:, 0] for b in range(4)]
        parts = [[x[b, free[b]][None] for x in (logits, tokens, x_t)] for b in range(4)]
        rows = [task.objective.plain(*part, t[b][None]) for b, part in enumerate(parts)]
        assert loss.item() == pytest.approx(torch.stack(rows).mean().item(), rel=1e-9)
    alone = Batch(tokens[:1], torch.arange(1))  # its anchor is all that is given: as rows of any layout
    same = Batch(tokens[:1], torch.arange(1), given=GIVEN[:1])
    one, other = (task.loss(Alone(model), each, 0)[0].item() for each in (alone, same))
    assert one == pytest.approx(other, rel=1e-12)


class Alone(torch.nn.Module):
    """The first row of another's table."""

    def __init__(self, model: Told) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_t: torch.Tensor, *told: Any, then: Any = None) -> Any:
        hidden = self.model.table[:1]
        return self.model.head(hidden) if then is None else then(hidden, self.model.head)


def test_rows_one_by_one_where_a_loss_has_no_kernel() -> None:
    """The same number by whole logits."""
    tokens = torch.randint(0, V, (4, L), generator=torch.Generator().manual_seed(2))
    batch, found = Batch(tokens, torch.arange(4), given=GIVEN), list[float]()
    for whole in (False, True):
        task = task_of("mdlm", "mask")
        if whole:
            task.objective = Plain(task.objective)
        found.append(task.loss(Told(V), batch, 0)[0].item())
    assert found[0] == pytest.approx(found[1], rel=1e-9)


class Plain:
    """A loss without the part for kernels."""

    def __init__(self, loss: Any) -> None:
        self.times, self.plain = loss.times, loss.plain

    def fused(self, x_1: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> None:
        return None


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sums as plain rows, and as prompts with answers, cut by the same tokenizer."""
    home = tmp_path_factory.mktemp("sums")
    lines = [{"ask": f"{a} and {b} make", "say": f"{a + b}, I think."} for a in range(14) for b in range(14)]
    (home / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept: dict[str, Any] = {"path": home / "sums.jsonl", "valid": 0.2}
    plain = make_corpus(CorpusSettings(out=home / "plain", field="ask+say", **kept))
    asked = make_corpus(CorpusSettings(out=home / "asked", field="say", prompt="ask", **kept))
    packed = make_tokens(TokensSettings(corpus=plain, out=home / "packed", vocab_size=300, length=32, workers=1))
    files = packed / "tokenizer"
    rows = TokensSettings(corpus=asked, out=home / "rows", tokenizer_files=files, length=24, layout="prompt", workers=1)
    return packed, make_tokens(rows)


@pytest.mark.parametrize(("name", "source"), [("dfm", "uniform"), ("mdlm", "mask"), ("llada", "mask")])
def test_the_bound_is_of_the_answer_given_the_prompt(name: str, source: str, sums: tuple[Path, Path]) -> None:
    """A network that knows nothing: log |V| nats a token and more; bits by the answers' characters alone."""
    found: Any = method(name)
    loop = LoopSettings(seed=5, batch=4)
    settings = found.settings(
        tokens=sums[1], out=Path("o"), net=NET, loop=loop, source=source, eval_rows=9, eval_times=40
    )
    valid = valid_rows(sums[1])
    assert valid is not None
    task = found.task(settings, spec_for(settings, TokenRows(sums[1], "train"), found), valid)
    task.bind(Context(ema=None, world=Processes()))
    told = task.evaluate(task.model.eval(), 0)
    nothing = math.log(valid.vocab_size)
    assert told["elbo"] == pytest.approx(nothing, rel=0.2) if source == "mask" else told["elbo"] > nothing
    if name == "llada":
        assert told["elbo"] == pytest.approx(nothing, rel=1e-6)  # exact numbers of masks: no chance in it
    picks = [i * len(valid) // 9 for i in range(9)]
    free = ~valid.given(picks)
    taken = valid.take(picks)
    kept = free & (taken != valid.end_of_text)
    answers = [valid.tokenizer.decode(taken[n][kept[n]]) for n in range(9)]
    bits = told["elbo"] * free.sum() / math.log(2) / sum(map(len, answers))
    assert told["bits_per_character"] == pytest.approx(bits, rel=1e-9)
    assert all("and" not in answer for answer in answers)


def settings_for(tokens: Path, out: Path, steps: int, **more: Any) -> Any:
    return method("llada").settings(
        tokens=tokens,
        out=out,
        net=NET,
        eval_rows=16,
        eval_times=4,
        short=0.2,
        loop=LoopSettings(steps=steps, batch=16, device="cpu", eval_every=20, save_every=20, log_every=10),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
        **more,
    )


@pytest.fixture(scope="module")
def tuned(sums: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short pre-training on packed text, and a fine-tuning from it on prompts of another length."""
    home = tmp_path_factory.mktemp("tuned")
    method("llada").train(settings_for(sums[0], home / "first", 20))
    settings = settings_for(sums[1], home / "tuned", 40, init_from=home / "first")
    method("llada").train(settings)
    return settings


def test_fine_tuning_resumes_and_answers(tuned: Any, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (tuned.out / "metrics.jsonl").read_text().splitlines()]
    bounds = [line["elbo"] for line in lines if "elbo" in line]
    assert bounds[-1] < bounds[0]
    out = tmp_path / "part"
    shutil.copytree(tuned.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000040")
    method("llada").train(dataclasses.replace(tuned, out=out, resume=True))
    mine, theirs = load_weights(out, "ema"), load_weights(tuned.out, "ema")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    asked = ["3 and 4 make\n", "12 and 13 make\n"]
    made = tsdfm.load(tuned.out, "cpu").sample(n=2, steps=4, prefix=asked)
    assert all(text.startswith(asked[n // 2]) for n, text in enumerate(made.texts))


def test_fine_tuning_takes_the_network_it_starts_from(tuned: Any, sums: tuple[Path, Path], tmp_path: Path) -> None:
    """Where nothing is said of the network; what is said of it must still fit."""
    first = str(tuned.init_from)
    words = ["train", "llada", "--source", "mask", "--tokens", str(sums[1]), "--init-from", first, "--eval-rows", "4"]
    words += ["--loop.steps", "1", "--loop.batch", "4", "--loop.device", "cpu", "--optim.warmup", "1"]
    assert main([*words, "--out", str(tmp_path / "tuned")]) == 0
    shapes = [read_manifest(path)["model"]["shape"] for path in (tmp_path / "tuned", Path(first))]
    assert {**shapes[0], "dropout": 0.0} == shapes[1]
    assert main([*words, "--resume", "--loop.steps", "2", "--out", str(tmp_path / "tuned")]) == 0
    assert main([*words, "--net.width", "32", "--out", str(tmp_path / "no")]) == 2


def test_a_task_that_would_learn_prompts_is_refused(
    sums: tuple[Path, Path],
    tuned: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, and nothing is begun."""
    monkeypatch.setattr(StudentTask, "prompts", False)
    teacher = settings_for(sums[1], tmp_path / "teacher", 2)
    kept = {f.name: getattr(teacher, f.name) for f in dataclasses.fields(teacher) if f.name not in ("epsilon", "short")}
    method("dfm").train(method("dfm").settings(**{**kept, "source": "mask"}))
    capsys.readouterr()
    words = ["train", "fs-dfm", "--tokens", str(sums[1]), "--init-from", str(tmp_path / "teacher")]
    assert main([*words, "--out", str(tmp_path / "no"), "--loop.device", "cpu"]) == 2
    assert "would learn the prompts" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
