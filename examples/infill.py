"""Fill gaps: the model writes what is missing and leaves the rest as it is.

`{8}` is a gap of eight tokens; after the template the model goes on. The model came with tsdfm and needs half a minute
on two CPU cores; TSDFM_EXAMPLE_STEPS sets the network passes of a text. `way.json` holds every state on the way of the
last texts: `tsdfm view way.json` plays it.
"""

import os
from pathlib import Path

import tsdfm

TEMPLATES = (
    "The little dog said {8}, and went to the {3}.",
    "One day {12}. In the end {12}.",
)


def main(steps: int = 16, out: Path = Path("way.json")) -> None:
    model = tsdfm.load("tsdfm-stories")
    for template in TEMPLATES:
        made = model.sample(n=2, steps=steps, seed=0, infill=template, trajectory=True)
        print(template, *(text[:160] for text in made.texts), sep="\n  ", end="\n\n")
    assert made.trajectory is not None
    print("every state of the last texts is in", made.trajectory.save(out))


if __name__ == "__main__":
    main(steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 16)))
