"""Structure check and full SHA-256 of a checkpoint of several GiB, against xargs and sha256sum on the same files.

Prints last: structure_ms=… sha256_ratio_to_xargs=… peak_mib=…; the ratio is xargs' time divided by ours. Every file is
read once before, so that neither side pays for the disk, and the two take turns.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))
from sglang_pve import checkpoint

SHARDS, TENSORS, SHARD_BYTES = 15, 100, 300 << 20
ROUNDS = 3
CONFIG = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"max_position_embeddings": 262144}}


def make(folder: Path) -> int:
    """4.4 GiB in 15 shards of 100 tensors each; returns its bytes."""
    places = {}
    block = os.urandom(8 << 20)
    rows = SHARD_BYTES // TENSORS // 2 // 1024
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        header, end = {}, 0
        for at in range(TENSORS):
            size = rows * 1024 * 2
            header[f"model.layers.{number}.{at}.weight"] = {
                "dtype": "BF16",
                "shape": [rows, 1024],
                "data_offsets": [end, end + size],
            }
            end += size
        raw = json.dumps(header).encode()
        with (folder / name).open("wb") as stream:
            stream.write(struct.pack("<Q", len(raw)) + raw)
            for begin in range(0, end, len(block)):
                stream.write(block[: min(len(block), end - begin)])
        places.update(dict.fromkeys(header, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return sum(path.stat().st_size for path in folder.iterdir())


def timed(action) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def in_a_process_of_its_own(code: str, *arguments: str) -> tuple[float, int]:
    """Seconds that `code` says it took, and the process's largest memory in bytes."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": PATH})
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak) * 1024


PATH = str(Path(checkpoint.__file__).parents[1])
MEASURE = """
import resource, sys, time
from pathlib import Path
from sglang_pve import checkpoint, integrity
begun = time.monotonic()
{action}
print(time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
STRUCTURE = MEASURE.format(action="checkpoint.inspect(sys.argv[1])")
READ = "integrity.verify(Path(sys.argv[1]), Path(sys.argv[2]), float('inf'))"
HASHES = MEASURE.format(action=f"assert not {READ}.findings")


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as work:
        folder, manifest = Path(work) / "model", Path(work) / "manifest.json"
        folder.mkdir()
        print(f"{make(folder) / 2**30:.2f} GiB in {SHARDS} shards", flush=True)
        find = f"find {folder} -type f -print0 | xargs -0 -n1 -P{os.cpu_count()} sha256sum >/dev/null"
        timed(lambda: subprocess.run(find, shell=True, check=True))
        ours, theirs, peaks = [], [], []
        for _ in range(ROUNDS):
            theirs.append(timed(lambda: subprocess.run(find, shell=True, check=True)))
            seconds, peak = in_a_process_of_its_own(HASHES, str(folder), str(manifest))
            ours.append(seconds)
            peaks.append(peak)
            print(f"xargs {theirs[-1]:.2f} s, ours {ours[-1]:.2f} s", flush=True)
        structure = []
        for _ in range(2 * ROUNDS):
            seconds, peak = in_a_process_of_its_own(STRUCTURE, str(folder))
            structure.append(seconds)
            peaks.append(peak)
    print(
        f"structure_ms={median(structure) * 1000:.0f} sha256_ratio_to_xargs={median(theirs) / median(ours):.2f} "
        f"peak_mib={max(peaks) / 2**20:.0f}"
    )


if __name__ == "__main__":
    main()
