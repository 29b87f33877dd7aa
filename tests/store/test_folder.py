"""A folder that is written anew is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from processes import Child
from tsdfm.errors import UserError
from tsdfm.store.folder import must_be_new, whole


def write(out: Path, text: str, name: str = "x.txt") -> None:
    with whole(out) as folder:
        (folder / name).write_text(text)


def killed_after(out: str, renames: int) -> None:
    """Write anew, and die after so many renames."""
    left, rename = [renames], Path.rename

    def counted(path: Path, target: Path) -> Path:
        new = rename(path, target)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return new

    Path.rename = counted  # type: ignore[method-assign]
    with whole(Path(out)) as folder:
        (folder / "x.txt").write_text("second")
        if renames == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("renames", "found"), [(0, "first"), (1, "first"), (2, "second")])
def test_after_a_kill_the_next_writer_finds_the_old_folder_or_the_new_one(
    renames: int, found: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write(out, "first")
    assert Child(killed_after, str(out), renames).wait() == -signal.SIGKILL
    with pytest.raises(ValueError, match="null"):
        write(out, "\0", "\0")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "x.txt").read_text() == found
    write(out, "third")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "x.txt").read_text() == "third"


def test_a_place_must_be_free(tmp_path: Path) -> None:
    must_be_new(tmp_path, "--out")
    must_be_new(tmp_path / "new", "--out")
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="is not an empty folder: give another --out"):
            must_be_new(place, "--out")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
def test_a_place_that_takes_no_files_is_named_as_it_was_given() -> None:
    with pytest.raises(UserError, match=r"^cannot make /proc/x \(.*\): choose another folder$"):
        write(Path("/proc/x"), "text")
