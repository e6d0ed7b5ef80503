"""What the real engine says when it fails, by a short name: where it happens by default, the exception, its text.

Texts are the strings of SGLang 0.5.11 and of the libraries under it, as published; the journal's readers look for them.
"""


class OutOfMemoryError(RuntimeError):
    """CUDA memory ran out."""


class AcceleratorError(RuntimeError):
    """An error that CUDA reported."""


class OutOfResources(Exception):  # noqa: N818 - Triton's own name, which the journal shows
    """A Triton kernel asks for more shared memory than the card has."""


OutOfMemoryError.__module__ = AcceleratorError.__module__ = "torch"
OutOfResources.__module__ = "triton.runtime.errors"

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total capacity of 94.97 GiB of which 1.69 GiB is free."
)
_CAPTURE = "Capture cuda graph failed: "
_HEADER = (
    "Ninja build failed. Ninja output:\nFAILED: sampling.cuda.o\nsampling.cuh:20:10:"
    " fatal error: curand.h: No such file or directory\nninja: build stopped: subcommand failed."
)

FAILURES = {
    "kernel-library": (
        "import",
        ImportError,
        (
            "[sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
            "libcudart.so.13: cannot open shared object file: No such file or directory"
        ),
    ),
    "libnuma": ("import", ImportError, "libnuma.so.1: cannot open shared object file: No such file or directory"),
    "undefined-symbol": (
        "import",
        ImportError,
        "common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
    ),
    "versions": (
        "import",
        Exception,
        "sglang-kernel is installed with version 0.4.1, which is less than the minimum required version 0.4.2",
    ),
    "cubin": (
        "import",
        RuntimeError,
        "flashinfer-cubin version (0.6.7) does not match flashinfer version (0.6.8.post1)",
    ),
    "no-accelerator": (
        "args",
        RuntimeError,
        "No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) is available.",
    ),
    "old-card": ("distributed", RuntimeError, "SGLang only supports sm75 and above."),
    "no-weights": ("weights", RuntimeError, "Cannot find any model weights with `{path}`"),
    "no-memory": ("pools", RuntimeError, "Not enough memory. Please try to increase --mem-fraction-static."),
    "no-running": ("pools", AssertionError, "max_running_request is zero"),
    "small-pool": ("pools", AssertionError, "Memory pool size is too small"),
    "oom": ("graphs", OutOfMemoryError, OUT_OF_MEMORY),
    "ninja": ("graphs", Exception, _CAPTURE + "ninja exited with status 1"),
    "header": ("graphs", Exception, _CAPTURE + _HEADER),
    "linker": ("graphs", Exception, _CAPTURE + "Ninja build failed. Ninja output:\n/usr/bin/ld: cannot find -lcuda"),
    "no-kernel-image": (
        "graphs",
        AcceleratorError,
        "CUDA error: no kernel image is available for execution on the device",
    ),
    "flashinfer-arch": ("graphs", RuntimeError, "FlashInfer requires GPUs with sm75 or higher"),
    "nvcc": (
        "graphs",
        RuntimeError,
        "Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    ),
    "cuda-home": (
        "graphs",
        RuntimeError,
        "Could not find CUDA installation. Please set CUDA_HOME environment variable.",
    ),
    "shared-memory": (
        "graphs",
        OutOfResources,
        (
            "out of resource: shared memory, Required: 114688, Hardware limit: 101376."
            " Reducing block sizes or `num_stages` may help."
        ),
    ),
    "warmup": ("warmup", AssertionError, "res=<Response [500]>, res.text='Internal Server Error'"),
    "decode-memory": ("serving", RuntimeError, "Decode out of memory. Try to lower your batch size."),
    "mamba-space": (
        "serving",
        AssertionError,
        "Not enough space for mamba cache, try to increase --mamba-full-memory-ratio or --max-mamba-cache-size",
    ),
}

# What a plain "exit" looks like at each stage.
AT_STAGE = {
    "import": "kernel-library",
    "args": "no-accelerator",
    "distributed": "old-card",
    "weights": "no-weights",
    "pools": "no-memory",
    "graphs": "oom",
    "warmup": "warmup",
    "ready": "oom",
    "serving": "oom",
}
STAGES = tuple(AT_STAGE)
