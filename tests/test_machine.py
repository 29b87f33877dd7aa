"""Freed memory: kept while a training runs, given back after it, and left to those who chose for themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tsdfm.machine import has_glibc, keeping_memory

ROUNDS = """
import json, resource, sys
from pathlib import Path
import torch
from tsdfm.engine.distributed import join

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(30):
        torch.ones(10 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
with join("cpu"):
    inside, during = faults(), held()
json.dump({"before": before, "inside": inside, "given back": during - held()}, sys.stdout)
"""
needs_glibc = pytest.mark.skipif(not has_glibc(), reason="the C library is not GNU's")


def rounds(**chosen: str) -> dict[str, int]:
    """Page faults of 30 tensors of 40 MiB, made and freed in turn, before a training and inside; bytes given back."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    made = subprocess.run([sys.executable, "-c", ROUNDS], env=own | chosen, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(made.stdout)
    return found


@needs_glibc
def test_a_training_keeps_what_it_frees_and_gives_it_back_at_its_end() -> None:
    found = rounds()
    assert found["inside"] < found["before"] / 2
    assert found["given back"] > 32 * 2**20


@needs_glibc
@pytest.mark.parametrize("chosen", [{"MALLOC_TOP_PAD_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=65536"}])
def test_what_the_user_chose_for_his_memory_stays(chosen: dict[str, str]) -> None:
    found = rounds(**chosen)
    assert found["inside"] > found["before"] / 2


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "confstr", raising=False)  # as on Windows
    assert not has_glibc()
    with keeping_memory():
        pass
