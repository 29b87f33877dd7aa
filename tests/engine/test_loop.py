import io
import json
import math
import os
import shutil
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_training
from toy_training import Denoise, Net, train

from processes import script
from tsdfm import terminal
from tsdfm.engine.distributed import Processes
from tsdfm.engine.log import Display, Metrics, duration, read_metrics, short
from tsdfm.errors import UserError
from tsdfm.store.checkpoint import Store, load_weights, read_state
from tsdfm.store.files import write_json
from tsdfm.store.manifest import read_manifest

ALONE = Processes()
CLOCK = {"seconds", "tokens_per_s"}


def lines(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in read_metrics(run)]


def same_files(a: Path, b: Path) -> bool:
    names = list(read_state(a)["files"])
    assert names == ["model.safetensors", "ema.safetensors", "optim.safetensors"]
    return all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


class Cut(Exception):
    """The end of a process."""


class Breaks(Denoise):
    """Breaks off in its eighth step."""

    def loss(self, model: Any, batch: Any, step: int) -> Any:
        if step == 7:
            raise Cut
        return super().loss(model, batch, step)


@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_a_resumed_run_is_bitwise_the_unbroken_one(tmp_path: Path, rule: str) -> None:
    """Broken at 5 of 11 steps: between reports (every 2) and evaluations (every 3), with dropout and accumulation."""
    given: dict[str, Any] = {"net": {"dropout": 0.3}, "task": {"poison": (3,)}, "optim": {"rule": rule}}
    loop = {"steps": 11, "micro": 4, "save_every": 5}
    whole = train(tmp_path / "whole", ALONE, loop=loop, **given)
    with pytest.raises(Cut):
        train(tmp_path / "cut", ALONE, loop=loop, made=Breaks(Net(dropout=0.3), poison=(3,)), optim={"rule": rule})
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "kind": "tr')  # a kill in the middle of a line
    torch.manual_seed(99)  # whatever state torch's generator is in
    resumed = train(tmp_path / "cut", ALONE, loop=loop, resume=True, **(given | {"net": {"dropout": 0.3, "seed": 4}}))
    assert resumed.name == whole.name == "step-00000011"
    assert same_files(resumed, whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    states = [read_state(p) for p in (resumed, whole)]
    assert states[0] == states[1]
    assert states[0]["tokens"] == 11 * 8 * toy_training.LENGTH


def test_a_run_that_is_ended_later_is_the_one_that_knew_its_end(tmp_path: Path) -> None:
    loop, optim = {"steps": 11, "save_every": 5}, {"decay": 4}
    whole = train(tmp_path / "whole", ALONE, loop=loop, optim=optim)
    with pytest.raises(Cut):
        train(tmp_path / "open", ALONE, loop={**loop, "steps": 10**6}, optim=optim, made=Breaks(Net()))
    assert same_files(train(tmp_path / "open", ALONE, loop=loop, optim=optim, resume=True), whole)


def test_the_check_above_can_fail(tmp_path: Path) -> None:
    a = train(tmp_path / "a", ALONE, net={"dropout": 0.3})
    b = train(tmp_path / "b", ALONE, net={"dropout": 0.3}, loop={"seed": 1})
    assert not same_files(a, b)


def test_it_learns_and_says_so(tmp_path: Path) -> None:
    last = train(tmp_path, ALONE, loop={"steps": 60, "log_every": 10, "eval_every": 30})
    train_lines, eval_lines = read_metrics(tmp_path, "train"), read_metrics(tmp_path, "eval")
    assert [line["step"] for line in train_lines] == [10, 20, 30, 40, 50, 60]
    assert train_lines[-1]["loss"] < 0.75 * train_lines[0]["loss"]
    assert eval_lines[-1]["elbo"] < eval_lines[0]["elbo"]
    assert {"lr", "grad_norm", "right", "tokens", "tokens_per_s", "skipped"} <= train_lines[0].keys()
    manifest = read_manifest(tmp_path)
    assert manifest["finished"]
    assert tmp_path / manifest["checkpoint"] == last
    assert manifest["files"] == read_state(last)["files"] == read_manifest(last)["files"]
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["step"] == 60


def test_the_first_loss_and_update_equal_plain_torch(tmp_path: Path) -> None:
    """An independent loop of three lines, compared over four steps (before weight decay and clipping matter)."""
    optim = {"lr": 1e-2, "warmup": 0, "floor": 1.0, "weight_decay": 0.0, "clip": 0.0, "ema": 0.0}
    last = train(tmp_path, ALONE, loop={"steps": 4, "log_every": 1}, optim=optim)
    task = Denoise(Net())
    plain = torch.optim.AdamW(task.model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0, fused=False)
    expected = []
    for step in range(4):
        loss, _ = task.loss(task.model, toy_training.rows_at(step, 8, 0, 1), step)
        plain.zero_grad()
        loss.backward()
        plain.step()
        expected.append(loss.item())
    assert [line["loss"] for line in read_metrics(tmp_path, "train")] == pytest.approx(expected, rel=1e-5)
    for name, value in load_weights(last).items():
        torch.testing.assert_close(value, task.model.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_accumulation_equals_the_big_batch(tmp_path: Path) -> None:
    big = train(tmp_path / "big", ALONE)
    for micro in (1, 2, 4):
        small = train(tmp_path / f"micro{micro}", ALONE, loop={"micro": micro})
        for name, value in load_weights(big, "model").items():
            torch.testing.assert_close(load_weights(small, "model")[name], value, rtol=1e-4, atol=1e-5)
        a, b = (read_metrics(p, "train") for p in (tmp_path / "big", tmp_path / f"micro{micro}"))
        assert [x["loss"] for x in a] == pytest.approx([x["loss"] for x in b], rel=1e-5)


@pytest.mark.parametrize("loop", [{"micro": 3}, {"micro": 5}])
def test_rows_that_do_not_divide_are_refused(tmp_path: Path, loop: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="does not divide"):
        train(tmp_path, ALONE, loop=loop)
    with pytest.raises(UserError, match="cannot be shared equally"):
        train(tmp_path, Processes(size=3), loop={})


def test_non_finite_steps_are_skipped_and_counted(tmp_path: Path) -> None:
    last = train(tmp_path, ALONE, task={"poison": (0, 2, 3)}, loop={"log_every": 2})
    found = read_metrics(tmp_path, "train")
    assert [line["skipped"] for line in found] == [1, 3, 3]
    assert found[1]["loss"] is None  # both steps of that report were skipped; JSON has no NaN
    assert math.isfinite(found[2]["loss"])
    assert all(bool(v.isfinite().all()) for v in load_weights(last, "model").values())
    assert load_weights(last, "ema")["head.weight"].isfinite().all()


def test_too_many_in_a_row_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not finite in 4 steps in a row.*step-00000006"):
        train(tmp_path, ALONE, task={"poison": (4, 5, 6, 7)}, loop={"steps": 20, "max_bad": 4, "eval_every": 0})
    train(tmp_path / "scattered", ALONE, task={"poison": (1, 3, 5, 7)}, loop={"steps": 9, "max_bad": 2})


def test_the_folder_of_another_stage_is_left_as_it_is(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"stage": "corpus"})
    before = (tmp_path / "manifest.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(UserError, match="its stage is 'corpus'"):
            train(tmp_path, ALONE, resume=resume)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert not Store(tmp_path).steps()


def test_the_row_of_bad_steps_survives_a_resume(tmp_path: Path) -> None:
    loop = {"save_every": 3, "eval_every": 0, "max_bad": 4, "log_every": 10, "steps": 3}
    train(tmp_path, ALONE, task={"poison": (1, 2)}, loop=loop)
    with pytest.raises(UserError, match="not finite in 4 steps"):
        train(tmp_path, ALONE, task={"poison": (3, 4)}, loop=loop | {"steps": 10}, resume=True)


def test_a_used_folder_is_refused_without_resume_and_resume_needs_nothing(tmp_path: Path) -> None:
    train(tmp_path, ALONE, resume=True)  # nothing to resume: starts
    with pytest.raises(UserError, match="--resume"):
        train(tmp_path, ALONE)
    before = lines(tmp_path)
    assert train(tmp_path, ALONE, resume=True).name == "step-00000006"  # finished already: nothing to do
    assert lines(tmp_path) == before
    assert train(tmp_path, ALONE, resume=True, loop={"steps": 8}).name == "step-00000008"


def test_fewer_steps_than_there_are_do_not_finish_a_run(tmp_path: Path) -> None:
    train(tmp_path, ALONE)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(UserError, match=r"has 6 steps already, and loop\.steps is 4: there is nothing left to train"):
        train(tmp_path, ALONE, resume=True, loop={"steps": 4})
    assert (tmp_path / "manifest.json").read_bytes() == before
    train(tmp_path, ALONE, resume=True)
    assert (tmp_path / "manifest.json").read_bytes() == before  # a finished run is left as it is


def test_what_a_kill_after_a_checkpoint_left_undone_is_done_on_resuming(tmp_path: Path) -> None:
    """The best is named and old checkpoints go after the checkpoint is written: a kill may come between."""
    loop = {"keep": 1, "eval_every": 2, "save_every": 1}
    train(tmp_path, ALONE, loop=loop)
    names, best = sorted(p.name for p in (tmp_path / "checkpoints").iterdir()), tmp_path / "checkpoints" / "best.json"
    before = best.read_bytes()
    best.unlink()
    shutil.copytree(Store(tmp_path).at(6), Store(tmp_path).at(1))  # one that was to go
    train(tmp_path, ALONE, loop=loop, resume=True)
    assert best.read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == names


def test_a_metric_that_no_evaluation_has_cannot_be_the_best(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loop\.best: no metric of the evaluation is called 'step_sen'; did you mean"):
        train(tmp_path, ALONE, loop={"best": "step_sen"})
    assert list(tmp_path.iterdir()) == []
    assert train(tmp_path, ALONE, loop={"best": "step_seen"}).is_dir()
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["metric"] == "step_seen"


def test_a_run_that_was_taken_over_saves_nothing_more(tmp_path: Path) -> None:
    class Robbed(Denoise):
        def loss(self, model: Any, batch: Any, step: int) -> Any:
            if step == 4:
                (tmp_path / ".lock").write_text('{"machine": "another", "host": "there", "pid": 3, "token": "x"}')
            return super().loss(model, batch, step)

    with pytest.raises(UserError, match="was taken over by process 3 on there"):
        train(tmp_path, ALONE, made=Robbed(Net()))
    assert Store(tmp_path).steps() == [3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optim": {"lr": 0.5}}, r"optim\.lr was 0\.01 and is now 0\.5"),
        ({"optim": {"ema": 0.0}}, r"optim\.ema was 0\.9"),
        ({"loop": {"seed": 3}}, "seed was 0 and is now 3"),
        ({"loop": {"batch": 4}}, "batch was 8"),
        ({"net": {"vocab": 12}}, r"embed\.weight has shape \[11, 16\].*\[12, 16\]"),
        ({"inputs": {"tokens": __file__}}, r"inputs\.tokens was"),
    ],
)
def test_what_matters_may_not_change_between(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    inputs = {"tokens": toy_training.__file__}
    train(tmp_path, ALONE, inputs=inputs)
    with pytest.raises(UserError, match=words):
        train(tmp_path, ALONE, resume=True, **({"inputs": inputs} | change))


def test_a_tampered_checkpoint_does_not_resume(tmp_path: Path) -> None:
    file = train(tmp_path, ALONE) / "optim.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(UserError, match=r"optim\.safetensors was changed"):
        train(tmp_path, ALONE, resume=True, loop={"steps": 9})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves(tmp_path: Path, number: int, code: int) -> None:
    loop = {"steps": 100_000, "eval_every": 0, "save_every": 0, "log_every": 1}
    job = json.dumps([{"out": str(tmp_path), "loop": loop, "task": {"pause": 0.01}}])
    child = script(toy_training.__file__, job)
    while child.poll() is None and not ((tmp_path / "metrics.jsonl").is_file() and len(read_metrics(tmp_path)) > 3):
        time.sleep(0.05)
    os.kill(child.pid, number)
    assert child.wait() == code
    said = child.said()
    step = Store(tmp_path).steps()[-1]
    assert f"stopped after step {step}, saved; the same command with --resume goes on" in said
    assert "Traceback" not in said
    done = train(tmp_path, ALONE, resume=True, loop={**loop, "steps": step + 1})
    assert done.name == f"step-{step + 1:08d}"


def test_keep_and_best(tmp_path: Path) -> None:
    """The evaluation is best at step 4, where no regular save is due: it is saved then, and never pruned."""

    class Staged(Denoise):
        def evaluate(self, model: Any, step: int) -> dict[str, float]:
            return {"elbo": {2: 3.0, 4: 1.0, 6: math.nan, 8: 2.0}.get(step, 5.0)}

    loop = {"steps": 12, "eval_every": 2, "save_every": 3, "keep": 2}
    train(tmp_path, ALONE, made=Staged(Net()), loop=loop)
    assert Store(tmp_path).steps() == [4, 9, 12]
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text()) == {
        "step": 4,
        "metric": "elbo",
        "value": 1.0,
    }
    resumed = Staged(Net())
    train(tmp_path, ALONE, made=resumed, loop=loop | {"steps": 14}, resume=True)
    assert Store(tmp_path).steps() == [4, 12, 14]


def test_of_equally_good_checkpoints_the_later_is_best(tmp_path: Path) -> None:
    class Level(Denoise):
        def evaluate(self, model: Any, step: int) -> dict[str, float]:
            return {"elbo": {2: 2.0, 4: 1.0, 6: 1.0}.get(step, 1.5)}

    train(tmp_path, ALONE, made=Level(Net()), loop={"steps": 8, "eval_every": 2, "save_every": 2, "keep": 1})
    assert Store(tmp_path).steps() == [6, 8]
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["step"] == 6


def test_the_averaged_model_can_teach_inside_the_loss(tmp_path: Path) -> None:
    """At step 0 the semi-teacher equals the student, so the extra term is 0; later it has drifted apart."""
    seen: list[float] = []

    class Watch(Denoise):
        def loss(self, model: Any, batch: Any, step: int) -> Any:
            assert self.context is not None
            ema = self.context.ema
            assert ema is not None
            assert not ema.training
            seen.append(float((ema.head.weight - self.model.head.weight).detach().abs().max()))  # type: ignore[operator, union-attr]
            return super().loss(model, batch, step)

    task = Watch(Net(), semi=True)
    last = train(tmp_path, ALONE, made=task)
    assert seen[0] == 0
    assert min(seen[1:]) > 0
    assert torch.equal(load_weights(last)["head.weight"], task.context.ema.head.weight)  # type: ignore[union-attr, arg-type]


def test_bf16_trains_with_float32_masters(tmp_path: Path) -> None:
    last = train(tmp_path, ALONE, loop={"precision": "bf16"})
    assert {v.dtype for v in load_weights(last, "model").values()} == {torch.float32}
    full = train(tmp_path / "full", ALONE, loop={"precision": "fp32"})
    a, b = load_weights(last)["head.weight"], load_weights(full)["head.weight"]
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, atol=0.03, rtol=0.1)


def test_no_value_is_read_between_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every read is a wait: with a report every 6 steps there are none in steps 0 to 4."""
    reads: list[int] = []

    class Counts(Denoise):
        step = -1

        def loss(self, model: Any, batch: Any, step: int) -> Any:
            self.step = step
            return super().loss(model, batch, step)

    task = Counts(Net())
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        real = getattr(torch.Tensor, name)

        def spy(self: Any, *args: Any, real: Any = real) -> Any:
            reads.append(task.step)
            return real(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    train(tmp_path, ALONE, made=task, loop={"log_every": 6, "eval_every": 0, "save_every": 0})
    assert set(reads) == {5}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU's memory")
def test_a_line_has_the_memory_of_a_gpu(tmp_path: Path) -> None:
    held = torch.empty(2**28, dtype=torch.int8, device="cuda")
    train(tmp_path / "run", Processes(device=torch.device("cuda")), loop={"steps": 2})
    assert all(0.25 <= line["peak_gib"] < 100 for line in read_metrics(tmp_path / "run", "train"))
    del held


def test_metrics_of_an_earlier_life_are_dropped(tmp_path: Path) -> None:
    first = Metrics(tmp_path)
    for step in (1, 2, 3):
        first.write(step, "train", {"loss": float(step), "bad": math.inf})
    first.close()
    second = Metrics(tmp_path, step=2)
    second.write(3, "train", {"loss": 30.0})
    second.close()
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0, 30.0]
    assert read_metrics(tmp_path)[0]["bad"] is None
    Metrics(tmp_path).close()
    assert read_metrics(tmp_path) == []


def test_the_display_on_a_terminal_and_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"loss": 1.5, "tokens_per_s": 12_345.0, "skipped": 0.0}
    plain = Display(100, 0)
    plain.advance(1)
    plain.report(10, values, 2.0)
    plain.close()
    assert capsys.readouterr().err == "step 10/100  loss 1.5000  12.3k tokens/s  3m00s left\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    dumb = Terminal()
    simple = Display(100, 0, dumb)
    simple.report(10, values, 2.0)
    simple.close()
    assert dumb.getvalue() == "step 10/100  loss 1.5000  12.3k tokens/s  3m00s left\n"
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    live = Display(100, 0, stream)
    live.report(10, values | {"skipped": 2.0}, 2.0)
    live.say("a line [not markup]")
    live.close()
    assert "12.3k tokens/s" in stream.getvalue()
    assert "a line [not markup]" in stream.getvalue()


def test_what_takes_a_while_is_shown_as_long_as_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Display(100, 0)
    with plain.doing("compiling…"):
        pass
    with terminal.many_stages(verbose=False), plain.doing("evaluating…"):
        pass
    assert capsys.readouterr().err == "compiling…\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    live = Display(100, 0, stream)
    live.report(10, {"loss": 1.5, "tokens_per_s": 12_345.0, "skipped": 0.0}, 2.0)
    with live.doing("evaluating…"):
        during = stream.getvalue()
    after = stream.getvalue()[len(during) :]
    live.close()
    assert during.endswith("evaluating…")
    assert "12.3k tokens/s" in after
    assert "evaluating…" not in after


def test_numbers_for_people() -> None:
    assert [short(x) for x in (12, 1234, 1.5e6, 2e9)] == ["12", "1.2k", "1.5M", "2.0G"]
    assert [duration(x) for x in (5.4, 65, 3725)] == ["5s", "1m05s", "1h02m"]


def test_a_checkpoint_from_before_a_dial_was_there_goes_on(tmp_path: Path) -> None:
    """It had the default; with another value it is another run."""
    train(tmp_path, ALONE, loop={"steps": 4, "save_every": 2})
    place = Store(tmp_path).at(4) / "state.json"
    state = json.loads(place.read_text())
    del state["identity"]["optim"]["rule"]
    place.write_text(json.dumps(state))
    with pytest.raises(UserError, match="rule was adamw and is now muon"):
        train(tmp_path, ALONE, loop={"steps": 5}, optim={"rule": "muon"}, resume=True)
    assert train(tmp_path, ALONE, loop={"steps": 5}, optim={"momentum": 0.5}, resume=True).name == "step-00000005"


def test_missing_tensorboard_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'tsdfm\[tensorboard\]'"):
        train(tmp_path, ALONE, loop={"tensorboard": True})


def test_tensorboard_gets_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert (Path(folder), purge_step) == (tmp_path / "tensorboard", 1)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, step))

        def close(self) -> None:
            seen.append(("closed", 0))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    train(tmp_path, ALONE, loop={"tensorboard": True})
    assert {("train/loss", 2), ("train/lr", 6), ("eval/elbo", 3)} <= set(seen)
    assert seen[-1] == ("closed", 0)


def test_data_that_ends_early_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    def short_feed(step: int, batch: int, world: Processes) -> Any:
        try:
            yield toy_training.rows_at(step, batch, 0, 1)
        finally:
            closed.append(True)

    monkeypatch.setattr(toy_training, "feed", short_feed)
    with pytest.raises(UserError, match="the data ended after 1 steps of 6"):
        train(tmp_path, ALONE)
    assert closed == [True]
