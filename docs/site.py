"""What the site has besides the pages in docs/: the API, a page a room, and the two pages of the repository's root.

MkDocs calls `on_config` and `on_files` (`hooks` in mkdocs.yml). A new room needs no change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tsdfm"
ROOT_PAGES = {"Contributing": "CONTRIBUTING.md", "Security": "SECURITY.md", "Changelog": "CHANGELOG.md"}


def rooms() -> Iterator[tuple[str, str]]:
    """(name, page) of every room: a folder of Python files, or a file beside them."""
    yield "tsdfm", _entry("tsdfm", level=1)
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            modules = [file for file in sorted(path.rglob("*.py")) if file.stem != "__init__"]
            dotted = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in modules]
            # of the package itself only its docstring: its names are those of its modules
            yield path.name, "\n".join([_entry(f"tsdfm.{path.name}", level=1, members=False), *map(_entry, dotted)])
        elif path.suffix == ".py" and not path.stem.startswith("_"):
            yield path.stem, _entry(f"tsdfm.{path.stem}", level=1)


def _entry(module: str, level: int = 2, members: bool = True) -> str:
    """What mkdocstrings replaces by the documentation of a module."""
    options = [f"heading_level: {level}", *([] if members else ["members: false"])]
    return "\n".join([f"::: {module}", "    options:", *(f"      {option}" for option in options), ""])


def on_config(config: Any) -> Any:
    config.nav = [
        *config.nav,
        {"API": [{name: f"api/{name}.md"} for name, _ in rooms()]},
        *({title: path.lower()} for title, path in ROOT_PAGES.items()),
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in rooms():
        files.append(File.generated(config, f"api/{name}.md", content=page))
    for path in ROOT_PAGES.values():
        text = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
        for other in ROOT_PAGES.values():
            text = text.replace(f"]({other})", f"]({other.lower()})")
        files.append(File.generated(config, path.lower(), content=text))
    return files
