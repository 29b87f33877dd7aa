"""Distils with the settings it is given as JSON, one after another: what torchrun starts in the tests."""

import json
import sys

from tsdfm.settings import build
from tsdfm.student.run import run
from tsdfm.student.settings import StudentSettings

if __name__ == "__main__":
    for plain in json.loads(sys.argv[1]):
        run(build(StudentSettings, plain))
