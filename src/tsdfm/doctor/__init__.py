"""What is installed, what this machine can do, and what a recipe would need."""
