"""Networks: the DDiT velocity network and its parts."""

from tsdfm.nn.ddit import DDiT, flops_per_token, parameters
from tsdfm.nn.settings import PRESETS, NetSettings, Shape

__all__ = ["PRESETS", "DDiT", "NetSettings", "Shape", "flops_per_token", "parameters"]
