"""What a figure was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from tsdfm.engine.distributed import pick_device


def hardware(device: torch.device | str = "auto") -> str:
    """`NVIDIA H200`, or the processor's name and how many threads torch uses of how many cores."""
    place = pick_device(device) if isinstance(device, str) else device
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    return f"CPU {_processor()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
