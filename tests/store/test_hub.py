"""Whether the hub is there is known before its client is asked."""

import socket
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from local_hub import nobody, online, serving
from tsdfm.store import hub


def test_a_hub_that_answers_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as address:
        online(monkeypatch, address, tmp_path)
        assert hub.out_of_reach() is None
    assert hub.out_of_reach() == "the hub cannot be reached"
    online(monkeypatch, nobody(), tmp_path)
    assert hub.out_of_reach() == "the hub cannot be reached"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.out_of_reach() == "HF_HUB_OFFLINE is set"


def test_a_hub_that_is_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes calls and never answers
        online(monkeypatch, f"http://127.0.0.1:{mute.getsockname()[1]}", tmp_path)
        assert hub.out_of_reach() == "the hub cannot be reached"
