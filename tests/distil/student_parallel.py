"""Distils with the settings it is given as JSON, one after another: what torchrun starts in the tests."""

import json
import sys

from training import student_of
from training import train as run

if __name__ == "__main__":
    for plain in json.loads(sys.argv[1]):
        run(student_of(plain))
