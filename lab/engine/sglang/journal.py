"""Lines on stderr in the shapes of the real engine's journal."""

import os
import time


def raw(text):
    """Write one line as it is. One write a line, so that two processes on one stream never mix theirs."""
    os.write(2, (text + "\n").encode())


def say(message):
    """Write one line the way the engine's logger does."""
    raw(time.strftime("[%Y-%m-%d %H:%M:%S] ") + message)


def uvicorn(level, message):
    """Write one line of the HTTP server, inside the engine's own prefix as 0.5.11 prints it."""
    say(f"{level + ':':<10}{message}")
