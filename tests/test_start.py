"""What lies around a command: the net under what escapes, memory, the environment of torchrun, texts by the million."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tsdfm import cli, machine, start
from tsdfm.engine.launch import torchrun_says
from tsdfm.errors import UserError
from tsdfm.nn.settings import NetSettings, Shape
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.samples.limits import check_amount


def escaping(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The exit code and what is said where a command raises `problem`."""

    def fails(words: list[str]) -> int:
        raise problem

    monkeypatch.setattr(cli, "_main", fails)
    code = cli.main(["sample", "x"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return code, said


def test_what_escapes_ends_in_one_line_and_a_saved_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(start.tempfile, "tempdir", str(tmp_path))
    code, said = escaping(KeyError("no such\nkey \x1b[2J"), monkeypatch, capsys)
    assert code == 1
    assert "this should not have happened (KeyError: " in said
    assert "\x1b" not in said
    (saved,) = tmp_path.iterdir()
    assert str(saved) in said
    assert "Traceback (most recent call last)" in saved.read_text()
    assert "tsdfm sample x" in saved.read_text()
    monkeypatch.setattr(start.tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert "nowhere: the temporary folder cannot be written" in escaping(ValueError(), monkeypatch, capsys)[1]


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (MemoryError(), 2, "there is not enough memory: lower the batch"),
        (RuntimeError("CUDA error: out of memory\nmore"), 2, "there is not enough memory (CUDA error: out of memory)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "there is not enough memory (Default"),
        (RuntimeError("shapes differ"), 1, "this should not have happened (RuntimeError"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "no space left where the output goes"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), 2, "cannot use a/b (Permission denied)"),
        (OSError(errno.EIO, "Input/output error"), 1, "this should not have happened (OSError"),
        (KeyboardInterrupt(), 130, "tsdfm: interrupted"),
        (UserError("two\nlines \x1b[2J"), 2, r"tsdfm: two lines \x1b[2J"),
    ],
)
def test_what_a_machine_can_do_has_words(
    problem: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, words = escaping(problem, monkeypatch, capsys)
    assert found == code
    assert said in words


def test_an_interrupt_in_a_librarys_clothes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = ImportError("numpy cannot be loaded")
    problem.__context__ = KeyboardInterrupt()
    assert escaping(problem, monkeypatch, capsys) == (130, "tsdfm: interrupted\n")


def test_nobody_needs_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sys, "stderr", Gone())
    with start.streams():
        print("one line", file=sys.stderr, flush=True)
    assert isinstance(sys.stderr, Gone)


def test_memory_is_a_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = machine.memory()
    assert 2**28 < whole < 2**50
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1000000\n")
    monkeypatch.setattr(machine, "LIMITS", (str(tmp_path / "max"), str(tmp_path / "none")))
    assert machine.memory() >= whole
    monkeypatch.setattr(machine, "LIMITS", (str(tmp_path / "limit"),))
    assert machine.memory() == 1_000_000
    machine.check_memory(1e6, "it", "less")
    with pytest.raises(UserError, match=r"it needs 1.9 MiB of memory, and this machine has 1,000,000 bytes: less"):
        machine.check_memory(2e6, "it", "less")
    assert machine.amount(3 * 2**50) == "3.0 PiB"


def spec(shape: Shape) -> VelocitySpec:
    about: dict[str, Any] = {"vocab": 300, "source": "mask", "schedule": "poly:1", "length": 128, "anchor": 0}
    return VelocitySpec(shape=shape, tokenizer="x", **about)


def test_networks_that_no_machine_holds_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    small = NetSettings(width=64, depth=3, heads=2).shape()
    made = sum(p.numel() for p in spec(small).network().parameters())
    assert 0.8 < small.weights(300) / made < 1.2
    monkeypatch.setattr(machine, "memory", lambda: 4 * made // 2)
    with pytest.raises(UserError, match=r"a network of [\d,]+ weights needs .* of memory"):
        spec(small).network()
    with torch.device("meta"):  # where nothing is made
        spec(small).network()


def test_texts_that_would_take_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    net = spec(NetSettings(width=64, depth=3, heads=2).shape())
    check_amount(net, "cpu", 1_000, 1_024)
    assert capsys.readouterr().err == ""
    check_amount(net, "cpu", 1, 10**8)
    assert capsys.readouterr().err == "1 texts of 128 tokens in 100,000,000 passes take 3 hours or more\n"
    for texts, steps, said in ((10**12, 1, "of memory"), (1, 10**12, "of memory"), (10**6, 10**5, "days or more")):
        with pytest.raises(UserError, match=rf"{texts:,} texts of 128 tokens in {steps:,} passes .*{said}"):
            check_amount(net, "cpu", texts, steps)
    check_amount(net, "cpu", 10**6, 10**5, long=True)
    with pytest.raises(UserError, match="of memory"):
        check_amount(net, "cpu", 10**5, 10**5, states=True, long=True)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert torchrun_says() == (0, 1, 0)
    monkeypatch.setenv("RANK", "3")
    assert torchrun_says() == (0, 1, 0)  # alone, whatever a scheduler calls it
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "1234")):
        monkeypatch.setenv(name, value)
    assert torchrun_says() == (3, 4, 1)
    os.environ.pop("MASTER_PORT")
    with pytest.raises(UserError, match="WORLD_SIZE=4, and MASTER_PORT is not set"):
        torchrun_says()
