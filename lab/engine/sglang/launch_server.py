"""`python -m sglang.launch_server ARGS`: the old entry of the engine, still the usual one."""

import sys

from .journal import raw
from .lifecycle import run

if __name__ == "__main__":
    raw(
        f"{__file__}:54: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the"
        " recommended entrypoint.\n  Example: sglang serve --model-path <model> [options]\n  warnings.warn("
    )
    run(sys.argv[1:])
