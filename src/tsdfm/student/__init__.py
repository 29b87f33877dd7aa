"""Few-step students: FS-DFM and TS-DFM are one distillation loop with another midpoint policy.

steps      step sizes h, times t, which rows take the large-step target
navigate   the four parts of Navigate: candidates, selection, refinement, safeguard
midpoint   the policies made of them: blind, sequence, token, sequence-to-token
stats      what navigation did, summed on the device
targets    Euler, Heun and RK-4 chains of the semi-teacher
recorded   the same as one CUDA graph
task, run  the objective and the stage
"""

from tsdfm.student.settings import NavigateSettings, StudentSettings

__all__ = ["NavigateSettings", "StudentSettings"]
