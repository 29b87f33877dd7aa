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
ROOT_PAGES = {"Contributing": "CONTRIBUTING.md", "Changelog": "CHANGELOG.md"}


def rooms() -> Iterator[tuple[str, str]]:
    """(name, page) of every room: a folder of Python files, or a file beside them."""
    yield "tsdfm", f"# tsdfm\n\n{_entry('tsdfm')}"
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            modules = sorted(path.rglob("*.py"), key=lambda file: (file.stem != "__init__", file.as_posix()))
            dotted = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in modules]
            entries = [_entry(name.removesuffix(".__init__")) for name in dotted]
            yield path.name, f"# tsdfm.{path.name}\n\n" + "\n".join(entries)
        elif path.suffix == ".py" and not path.stem.startswith("_"):
            yield path.stem, f"# tsdfm.{path.stem}\n\n{_entry(f'tsdfm.{path.stem}')}"


def _entry(module: str) -> str:
    return f"::: {module}\n"


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
        files.append(File.generated(config, path.lower(), content=text))
    return files
