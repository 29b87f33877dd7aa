"""What was changed after it was made is found: by stages when they take it, and by `tsdfm verify`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import toy_training
from toy_training import train

from tsdfm.cli import main
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.engine.distributed import Processes
from tsdfm.errors import UserError
from tsdfm.store.bundle import MODELS
from tsdfm.store.hashes import MEMORY, check_inputs, remember
from tsdfm.tokens.run import PROGRESS
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

ALONE = Processes()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its tokens and a run. Not to be changed."""
    home = tmp_path_factory.mktemp("text")
    make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=80, valid=0.2))
    make_tokens(settings(home))
    train(home / "run", ALONE, inputs={"tokens": str(home / "tokens")})
    return home


def settings(home: Path) -> TokensSettings:
    made = {"tokenizer": "byte", "length": 32, "shard_rows": 64, "workers": 1}
    return TokensSettings(corpus=home / "corpus", out=home / "tokens", **made)  # type: ignore[arg-type]


@pytest.fixture
def home(text: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text, tmp_path / "home"))


def flip(path: Path, *, quietly: bool = True) -> None:
    """Change one bit, and if `quietly` leave the file's time as it was."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if quietly:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("how", ["flipped", "short", "gone"])
def test_a_changed_corpus_is_not_tokenised(home: Path, how: str) -> None:
    shutil.rmtree(home / "tokens")
    file = home / "corpus" / "train.jsonl.gz"
    if how == "gone":
        file.unlink()
    elif how == "short":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        flip(file)
    said = {"flipped": "was changed after it was made", "short": "bytes instead of", "gone": "is missing"}
    with pytest.raises(UserError, match=rf"train.jsonl.gz .*{said[how]}"):
        make_tokens(settings(home))
    assert not (home / "tokens").exists()


def test_a_changed_shard_is_not_trained_on(home: Path) -> None:
    """Its first training finds a bit that was flipped without a trace; one that goes on finds what was written to."""
    inputs, shard = {"tokens": str(home / "tokens")}, home / "tokens" / "train-00000.bin"
    flip(shard)
    with pytest.raises(UserError, match=r"train-00000.bin was changed after it was made \(sha256 differs\)"):
        train(home / "new", ALONE, inputs=inputs)
    assert not (home / "new").exists()
    train(home / "run", ALONE, inputs=inputs, resume=True, loop={"steps": 7})  # it has read these rows before
    os.utime(shard)
    with pytest.raises(UserError, match=r"train-00000.bin was changed"):
        train(home / "run", ALONE, inputs=inputs, resume=True, loop={"steps": 8})
    flip(shard, quietly=False)  # and back
    train(home / "run", ALONE, inputs=inputs, resume=True, loop={"steps": 8})


def test_hashes_are_read_once_and_sizes_always(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    from tsdfm.store import hashes

    real = hashes.file_sha256
    monkeypatch.setattr(hashes, "file_sha256", lambda path: hashed.append(path.name) or real(path))
    inputs, out = {"corpus": home / "corpus", "file": home / "corpus" / "train.jsonl.gz"}, home / "stage"
    remember(out, check_inputs(inputs, out))
    assert hashed == ["manifest.json", "train.jsonl.gz", "valid.jsonl.gz"]
    check_inputs(inputs, out)
    assert hashed[3:] == ["manifest.json"]
    os.utime(home / "corpus" / "valid.jsonl.gz")
    check_inputs(inputs, out)
    assert hashed[4:] == ["manifest.json", "valid.jsonl.gz"]
    (out / MEMORY).write_text(json.dumps(dict.fromkeys(json.loads((out / MEMORY).read_text()), 3)))
    check_inputs(inputs, out)  # a damaged memory is no memory
    assert hashed[6:] == ["manifest.json", "train.jsonl.gz", "valid.jsonl.gz"]


def test_a_shard_that_was_changed_after_a_kill_is_not_kept(home: Path) -> None:
    from packing_parts import packs

    from processes import Child

    shutil.rmtree(home / "tokens")
    child = Child(packs, home / "corpus", home / "tokens", "recorded", 4, "packed")
    assert child.wait() < 0
    progress = json.loads((home / "tokens" / PROGRESS).read_text())
    shards = progress["train"]["shards"]
    assert shards
    flip(home / "tokens" / shards[0]["file"])
    from packing_parts import settings as small

    with pytest.raises(UserError, match=rf"{shards[0]['file']} was changed after it was written"):
        make_tokens(small(home / "corpus", home / "tokens"))
    flip(home / "tokens" / shards[0]["file"])
    make_tokens(small(home / "corpus", home / "tokens"))


def test_finished_text_is_not_taken_for_whole_where_a_file_is_cut(home: Path) -> None:
    shard = home / "tokens" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train-00000.bin is damaged \(\d+ bytes instead of"):
        make_tokens(settings(home))
    (home / "corpus" / "valid.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"valid.jsonl.gz is missing"):
        make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=80, valid=0.2))


def test_verify_finds_everything_whole(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(text), "tsdfm-stories", str(text / "run" / "checkpoints" / "step-00000006")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in said] == [
        *("corpus", "run of toy", "tokens"),
        "bundle",
        "checkpoint",
    ]
    assert all(line.endswith("whole") for line in said)
    assert main(["verify", str(text), "--json"]) == 0
    assert [found["problems"] for found in json.loads(capsys.readouterr().out)] == [[], [], []]


@pytest.mark.parametrize(
    "name",
    [
        "corpus/valid.jsonl.gz",
        "tokens/valid-00000.bin",
        "tokens/tokenizer/tokenizer.json",
        "run/checkpoints/step-00000003/optim.safetensors",
        "run/checkpoints/step-00000006/ema.safetensors",
        "run/checkpoints/step-00000006/state.json",
        "corpus/manifest.json",
    ],
)
def test_verify_finds_every_damage(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / name
    if path.suffix == ".json":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        flip(path)
    assert main(["verify", str(home)]) == 2
    said = capsys.readouterr()
    assert said.out.count("whole") == 2
    assert path.name in said.err
    assert said.err.splitlines()[-1].startswith("tsdfm: 1 file is not as written")


def test_verify_looks_into_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = Path(shutil.copytree(MODELS / "tsdfm-stories", tmp_path / "mine"))
    flip(mine / "compass.safetensors")
    assert main(["verify", str(mine)]) == 2
    assert "compass.safetensors has another sha256" in capsys.readouterr().err
    (mine / "tokenizer" / "tokenizer.json").unlink()
    (mine / "tokenizer").rmdir()
    assert main(["verify", str(mine)]) == 2
    assert "tokenizer is missing" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    assert "nothing that tsdfm made is at" in capsys.readouterr().err


def test_two_trainings_into_one_folder(tmp_path: Path) -> None:
    """By real processes: the second is refused in a line, and the first never notices."""
    import os as system
    import signal
    import time

    from processes import script

    loop = {"steps": 100_000, "eval_every": 0, "save_every": 0, "log_every": 1}
    job = json.dumps([{"out": str(tmp_path), "loop": loop, "task": {"pause": 0.01}}])
    first = script(toy_training.__file__, job)
    while first.poll() is None and not (tmp_path / "metrics.jsonl").is_file():
        time.sleep(0.02)
    second = script(toy_training.__file__, job)
    assert second.wait() == 2
    assert f"error[0]: {tmp_path} is in use by process {first.pid} since" in second.said()
    system.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 143
    assert "saved" in first.said()
    assert not (tmp_path / ".lock").exists()
