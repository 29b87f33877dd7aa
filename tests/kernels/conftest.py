"""Kernels run on the GPU where there is one, else through Triton's interpreter, which must be asked for before Triton
is imported."""

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
