"""Stage a checkpoint of 4 GiB into memory and compare with copying the same files. usage: stage.py [GIB]

Each round copies the same files with as many processes or threads as there are cores: staging and ``xargs -P cp``, each
with the files in the page cache and with them on the disk alone; and ``xargs -P sha256sum``, which ``cp`` would need
besides to prove as much. What counts is the median of the rounds' ratios; the last line has them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "module_utils"), str(ROOT / "tests/unit")]

from make_safetensors import write_index, write_safetensors  # noqa: E402
from sglang_pve import room  # noqa: E402

SHARDS, ROUNDS = 15, 5
CORES = len(os.sched_getaffinity(0))
MEMORY = Path("/dev/shm")


def make(source: Path, gib: float) -> int:
    """A checkpoint of equal shards; returns its bytes."""
    rows = int(gib * room.GIB / SHARDS / 2 / 4096)
    layout = {
        f"model-{number:05}-of-{SHARDS:05}.safetensors": {f"layer.{number}.weight": ("BF16", [rows, 4096])}
        for number in range(1, SHARDS + 1)
    }
    for shard, tensors in layout.items():
        write_safetensors(source / shard, tensors)
    write_index(source, layout)
    (source / "config.json").write_text('{"architectures": ["Qwen3_5ForConditionalGeneration"]}')
    (source / "tokenizer.json").write_text("{}")
    return sum(path.stat().st_size for path in source.iterdir())


def cached(source: Path, wanted: bool) -> None:
    for path in source.iterdir():
        with path.open("rb") as stream:
            if wanted:
                while stream.read(1 << 20):
                    pass
            else:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(run: Callable[[], object]) -> float:
    begun = time.monotonic()
    run()
    return time.monotonic() - begun


def shell(source: Path, command: str) -> float:
    pipe = f"find {source} -type f -print0 | xargs -0 -n 1 -P {CORES} {command}"
    return seconds(lambda: subprocess.run(pipe, shell=True, check=True, stdout=subprocess.DEVNULL))


def stage(source: Path, target: Path) -> tuple[float, float]:
    """Seconds and MiB at the most, of a process as the unit starts it."""
    code = (
        "import sys; from pathlib import Path; from sglang_pve import staging\n"
        "staging.stage([staging.Model(*map(Path, sys.argv[1:]))], lambda line: None)\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')))"
    )
    command = [sys.executable, "-S", "-c", code, str(source), str(target)]
    begun = time.monotonic()
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "module_utils")}, stdout=subprocess.PIPE, check=True)
    return time.monotonic() - begun, int(done.stdout) / 1024


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    figures: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-stage-", dir="/var/tmp") as disk,
        tempfile.TemporaryDirectory(prefix="bench-stage-", dir=MEMORY) as memory,
    ):
        source, copy, target = Path(disk), Path(memory) / "copy", Path(memory) / "stage"
        size = make(source, gib) / room.GIB
        for number in range(ROUNDS):
            times: dict[str, float] = {}
            for kind, in_cache in (("", True), ("_cold", False)):
                cached(source, in_cache)
                copy.mkdir()
                times["cp" + kind] = shell(source, f"cp -t {copy}")
                shutil.rmtree(copy)
                cached(source, in_cache)
                times["stage" + kind], peak = stage(source, target)
                shutil.rmtree(target)
            cached(source, True)
            times["sha"] = shell(source, "sha256sum")
            print(f"round {number + 1}:", *(f"{name} {value:.2f} s" for name, value in times.items()), flush=True)
            for name, value in {
                "stage_ratio_to_cp": times["cp"] / times["stage"],
                "stage_ratio_to_cp_cold": times["cp_cold"] / times["stage_cold"],
                "stage_ratio_to_cp_and_sha256sum": (times["cp"] + times["sha"]) / times["stage"],
                "stage_gib_per_s": size / times["stage"],
                "peak_mib": peak,
            }.items():
                figures.setdefault(name, []).append(value)
    print(*(f"{name}={statistics.median(values):.2f}" for name, values in figures.items()))


if __name__ == "__main__":
    main()
