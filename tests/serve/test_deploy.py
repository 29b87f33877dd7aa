"""What stands around the server: the image, the compose file, Prometheus, the unit and the pages name what there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import VERBS, read
from tsdfm.serve.settings import ServeSettings
from tsdfm.settings import defaults

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]


def settings(words: list[str]) -> ServeSettings:
    """What `tsdfm WORDS…` would serve with; a wrong word is refused here as there."""
    assert words[0] == "serve"
    made = read("serve", VERBS["serve"], words[1:])
    assert isinstance(made, ServeSettings)
    return made


def test_the_image_copies_what_exists_and_serves_to_the_outside() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [name for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    steps = dict(re.findall(r"^(ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE))
    assert json.loads(steps["ENTRYPOINT"]) == ["tsdfm"]
    made = settings(json.loads(steps["CMD"]))
    assert (made.host, str(made.port)) == ("0.0.0.0", re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE)[0])
    assert "--uid 1000 tsdfm" in text
    assert text.index("USER 1000") < text.index("ENTRYPOINT [")


def test_the_compose_file_fits_the_server() -> None:
    made: Any = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    server, watcher = made["services"]["tsdfm"], made["services"]["prometheus"]
    assert (ROOT / "deploy" / server["build"]["context"] / "Dockerfile").is_file()
    asked = settings(server["command"])
    scraped: Any = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text(encoding="utf-8"))
    assert [job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]] == [[f"tsdfm:{asked.port}"]]
    assert server["environment"] == {"TSDFM_API_KEY": None}  # passed on where it is set: an empty one is refused
    assert "tsdfm" in asked.names  # or Prometheus would be turned away
    assert int(server["stop_grace_period"].removesuffix("s")) > asked.deadline
    for mount in watcher["volumes"]:
        assert (ROOT / "deploy" / mount.split(":")[0]).is_file()
    for ports in (server["ports"], watcher["ports"]):
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_command_of_the_page_is_understood() -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    found = re.findall(r"^(?:ExecStart=\S*/)?tsdfm (serve[^\n]*)$", text, re.MULTILINE)
    assert len(found) == 4
    for words in found:
        settings(shlex.split(words, comments=True))
    (stop,) = re.findall(r"TimeoutStopSec=(\d+)", text)
    assert int(stop) > ServeSettings().deadline


def test_the_page_lists_every_flag_with_its_default() -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--([a-z-]+)` \| (.*?) \| .+ \|$", text, re.MULTILINE)

    def cell(value: Any) -> str:
        return "none" if value in (None, []) else f"{value:g}" if isinstance(value, float) else str(value)

    assert rows == [(name.replace("_", "-"), cell(value)) for name, value in defaults(ServeSettings).items()]
