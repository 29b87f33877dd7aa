"""Seeded steps give the losses they gave before anything was made quicker: the values below were taken then.

They are of version 9d737d1's code in float32 on a CPU, those of the reverse divergence of 16ec772's; SDTT's are of the
code that brought it. Whoever means to
change a result writes new ones down; whoever means to change the speed alone may not.
"""

from __future__ import annotations

import pytest
import torch
from step_parts import losses

from tsdfm import kernels

CPU = torch.device("cpu")
STORED = {  # (loss, gradient norm) of two steps
    "fs-dfm": [(2.7508597373962402, 2.539445161819458), (4.028491973876953, 3.7979557514190674)],
    "ts-dfm": [(2.742234945297241, 2.381843328475952), (3.9896111488342285, 3.604076862335205)],
    "fs-dfm-reverse": [(2.748408079147339, 2.4683916568756104), (4.044073104858398, 3.814535140991211)],
    "ts-dfm-reverse": [(2.7212626934051514, 2.2640814781188965), (3.985706090927124, 3.5540285110473633)],
    "teacher": [(4.854542255401611, 6.185528755187988), (4.665637493133545, 5.190876007080078)],
    "sdtt": [(0.08833330124616623, 1.0931211709976196), (0.041447725147008896, 0.49081850051879883)],
    "sdtt-forward": [(0.11282159388065338, 1.4958269596099854), (0.0484289713203907, 0.7064448595046997)],
    "compass": [(2.1967363357543945, 7.163674354553223), (1.9366719722747803, 6.935422897338867)],
}


def check(found: list[tuple[float, float]], name: str, rel: float = 1e-5) -> None:
    assert found
    for mine, stored in zip(found, STORED[name], strict=False):  # of one step, or of both
        assert mine == pytest.approx(stored, rel=rel)


@pytest.mark.parametrize("name", STORED)
def test_stored_losses(name: str) -> None:
    found = losses(name, CPU)
    assert len(found) == 2
    check(found, name)


@pytest.mark.parametrize("name", STORED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of −inf in blocks that are all padding
def test_stored_losses_by_kernels(name: str) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, and Triton's interpreter is off")
    with kernels.forced():
        check(losses(name, CPU, steps=1), name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", STORED)
def test_stored_losses_on_a_gpu(name: str) -> None:
    check(losses(name, torch.device("cuda"), steps=1), name, 1e-4)
