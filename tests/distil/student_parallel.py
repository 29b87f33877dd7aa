"""Distils with the settings it is given as JSON, one after another: what torchrun starts in the tests."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from training import named_settings
from training import train as run

if __name__ == "__main__":
    for plain in json.loads(sys.argv[1]):
        run(named_settings(plain))
