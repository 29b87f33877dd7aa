"""`python -m tsdfm`, for torchrun."""

import sys

from tsdfm.cli import main

sys.exit(main())
