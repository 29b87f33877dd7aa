"""Guide a model by its compass: of K candidates for the next state, each step takes the one of lowest energy.

The model and its compass came with tsdfm. It needs half a minute on two CPU cores; TSDFM_EXAMPLE_STEPS sets the network
passes of a text.
"""

import os

import tsdfm
from tsdfm.compass.model import load_compass
from tsdfm.distil.settings import NavigateSettings
from tsdfm.samples.guide import Guide


def main(steps: int = 8) -> None:
    model, compass = tsdfm.load("tsdfm-stories"), load_compass("tsdfm-stories")
    guided = Guide("sequence", compass, NavigateSettings(k=4))
    for name, guide in (("free", None), ("guided", guided)):
        made = model.sample(n=2, steps=steps, seed=0, prefix="One day, a dog named Max was hungry.", guide=guide)
        energy = compass.energy(made.tokens).mean().item()
        print(f"{name}: {made.nfe} passes and {made.compass_calls:.0f} scored states a text, {made.seconds:.1f} s;")
        print(f"mean energy {energy:.3f} (lower is better). The first text begins:\n  {made.texts[0][:200]!r}\n")


if __name__ == "__main__":
    main(steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 8)))
