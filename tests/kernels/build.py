"""Run by a stack's own Python: compile kernels of the engine or of flashinfer for SM 12.0, as the engine does itself.

Needs no GPU. Prints the seconds of each.

usage: build.py KERNEL...    (activation, page, sampling)
"""

from __future__ import annotations

import sys
import time


def activation() -> None:
    import torch
    from sglang.jit_kernel.activation import _jit_activation_module
    from sglang.jit_kernel.utils import override_jit_cuda_arch

    with override_jit_cuda_arch(12, 0, "a"):
        _jit_activation_module(torch.bfloat16)


def page() -> None:
    from flashinfer.jit.page import gen_page_module

    gen_page_module().build(verbose=True)


def sampling() -> None:
    from flashinfer.jit.sampling import gen_sampling_module

    gen_sampling_module().build(verbose=True)


# flashinfer compiles in processes of its own, which import this file.
if __name__ == "__main__":
    for name in sys.argv[1:]:
        start = time.monotonic()
        {"activation": activation, "page": page, "sampling": sampling}[name]()
        print(f"{name} {time.monotonic() - start:.1f} s", flush=True)
