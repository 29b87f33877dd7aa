"""Public checkpoints: other people's files in and out. Nothing in a file is ever executed."""
