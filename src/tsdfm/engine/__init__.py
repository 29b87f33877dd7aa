"""One training loop for every stage, and what it stands on: checkpoints, manifests, processes, precision, logs."""
