import sys
from pathlib import Path

for other in ("engine", "tokens"):  # their small trainings and packings
    sys.path.insert(0, str(Path(__file__).parent.parent / other))
