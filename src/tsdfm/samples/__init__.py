"""Generation: batches, prefix, infill, seeds, trajectories."""
