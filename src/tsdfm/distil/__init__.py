"""Distillation: what few-step students are made of. FS-DFM and TS-DFM are one loop with another midpoint policy.

parts       Times, Teacher, Rollout, Floor: a distillation is one of each
times       step sizes h, times t, which rows take a large step
teachers    the student's average, a frozen model, one renewed in rounds
chain       roll-outs: Euler, Heun and RK-4 chains with blind midpoints
navigated   the same with midpoints that a compass chose
reveal      roll-outs of masked models: ancestral steps, each position's target from the step that revealed it
divergences KL, mse and tvd by name
traces      texts that a model wrote, with the order of their tokens
selfplay    a student against the one it was, on such texts
midpoint    the policies: blind, sequence, token, sequence-to-token
navigate    Algorithm 1 in its parts: candidates, selection, refinement, safeguard
floor       what the smallest step learns
recorded    a chain as one CUDA graph
stats       what navigation did, summed on the device
beyond      what goes beyond the paper
task, run   the objective and the stage
"""
