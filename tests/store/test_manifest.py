import errno
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tsdfm.engine.settings import LoopSettings
from tsdfm.errors import UserError
from tsdfm.store.files import disk, unfinished, write_json
from tsdfm.store.manifest import check_place, input_sha256, read_manifest, write_manifest


@dataclass(frozen=True, kw_only=True)
class Stage:
    corpus: Path
    loop: LoopSettings


STAGE = Stage(corpus=Path("a"), loop=LoopSettings(seed=5))


def test_a_manifest_says_what_made_the_folder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("once")
    write_manifest(tmp_path / "one", stage="one", settings=STAGE, inputs={"text": tmp_path / "text.txt"})
    inputs = {"corpus": tmp_path / "one"}
    write_manifest(tmp_path / "two", stage="two", settings=STAGE, inputs=inputs, extra={"rows": 7})
    one, two = read_manifest(tmp_path / "one"), read_manifest(tmp_path / "two")
    assert one["inputs"]["text"]["sha256"] == hashlib.sha256(b"once").hexdigest()
    content = (tmp_path / "one" / "manifest.json").read_bytes()
    assert two["inputs"]["corpus"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert (two["stage"], two["rows"], two["seed"], two["settings"]["corpus"]) == ("two", 7, 5, "a")
    assert two["versions"]["torch"] == str(torch.__version__)


def test_a_stage_does_not_take_the_folder_of_another(tmp_path: Path) -> None:
    check_place(tmp_path, "tokens")
    write_manifest(tmp_path, stage="tokens", settings=STAGE, inputs={})
    check_place(tmp_path, "tokens")
    with pytest.raises(UserError, match=r"its stage is 'tokens'.*another --out"):
        check_place(tmp_path, "teacher")


def test_what_began_as_a_public_model_says_so_through_any_number_of_trainings(tmp_path: Path) -> None:
    origin = {"source": "them/theirs", "revision": None, "layout": "mdlm", "licence": "mit", "left_out": {"a": "b"}}
    write_manifest(tmp_path / "import", stage="import", settings=STAGE, inputs={}, extra={"origin": origin})
    write_manifest(tmp_path / "one", stage="one", settings=STAGE, inputs={}, parent=tmp_path / "import")
    write_manifest(tmp_path / "two", stage="two", settings=STAGE, inputs={}, parent=tmp_path / "one")
    assert read_manifest(tmp_path / "two")["descent"] == {"source": "them/theirs", "layout": "mdlm", "licence": "mit"}
    write_manifest(tmp_path / "own", stage="one", settings=STAGE, inputs={})
    write_manifest(tmp_path / "three", stage="two", settings=STAGE, inputs={}, parent=tmp_path / "own")
    assert "descent" not in read_manifest(tmp_path / "three")


def test_extra_keys_may_not_hide_the_manifests_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed"):
        write_manifest(tmp_path, stage="x", settings=STAGE, inputs={}, extra={"seed": 1})


def test_the_hash_of_a_plain_folder_sees_names_and_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    first = input_sha256(tmp_path)
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    second = input_sha256(tmp_path)
    (tmp_path / "b.txt").write_text("y")
    assert len({first, second, input_sha256(tmp_path)}) == 3


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)


def test_missing_things_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no stage of tsdfm made it, or it was not finished"):
        read_manifest(tmp_path)
    with pytest.raises(UserError, match="no file or folder"):
        input_sha256(tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.json", {"old": 1})
    unfinished(path).symlink_to("/dev/full")
    with pytest.raises(UserError, match="no disk space left"):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("real.json")
    write_json(link, 2)
    assert link.is_symlink()
    assert (tmp_path / "real.json").read_text() == "2\n"


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs names of streams")
def test_the_names_of_streams(capfd: pytest.CaptureFixture[str]) -> None:
    write_json("/dev/stdout", "out")
    write_json("/dev/stderr", "err")
    assert tuple(capfd.readouterr()) == ('"out"\n', '"err"\n')
    assert Path("/dev/stdout").is_symlink()


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"x": 1})
    assert json.loads(os.read(reader, 100)) == {"x": 1}
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_device_is_told_and_stays_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no disk space left"):
        write_json("/dev/full", {"x": 1})
    assert Path("/dev/full").is_char_device()


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="in the way"):
        write_json(tmp_path / "out" / "x.json", {})


def test_other_system_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"), disk(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
