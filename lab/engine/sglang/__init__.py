"""Stand-in for SGLang 0.5.11 in a lab without GPUs: command line, journal, HTTP answers and failures of the real one.

It holds no model and proves nothing about CUDA, kernels, speed or the quality of answers.
lab/engine/README.md says more.
"""

__version__ = "0.5.11"
