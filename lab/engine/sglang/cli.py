"""`sglang serve ARGS`: the recommended entry of the engine. Only `serve` and `version` are here."""

import sys

from . import __version__
from .lifecycle import run


def main():
    """Entry of the console script."""
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["version"]:
        print(f"sglang version: {__version__}")
    elif command == ["serve"]:
        run(arguments)
    else:
        sys.exit("usage: sglang {serve,version} ...")
