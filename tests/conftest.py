"""What holds for every test: no network, and Triton's kernels by its interpreter where no GPU is.

Triton reads its switch when it is first imported, and half the libraries here import it, so it is set before any test.
"""

import os
import sys
from pathlib import Path

from tsdfm.cli import share_cores

os.environ.setdefault("HF_HUB_OFFLINE", "1")
share_cores()
sys.path.insert(0, str(Path(__file__).parent))  # `training`, which the tests of several rooms use
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
