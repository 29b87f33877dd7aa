"""Completion of the command line in bash, zsh and fish. One function answers for all three, by what commands read."""
