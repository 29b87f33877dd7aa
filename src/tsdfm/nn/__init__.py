"""Networks: the DDiT velocity network and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsdfm.lazy import lazily
from tsdfm.nn.settings import PRESETS, NetSettings, Shape

if TYPE_CHECKING:
    from tsdfm.nn.ddit import DDiT, flops_per_token, parameters

__all__ = ["PRESETS", "DDiT", "NetSettings", "Shape", "flops_per_token", "parameters"]

__getattr__ = lazily(__name__, {"DDiT": "ddit", "flops_per_token": "ddit", "parameters": "ddit"})
