"""Looking at trajectories."""
