"""One training loop for every stage, and what it stands on: processes, precision, optimisers, recorded passes, logs."""
