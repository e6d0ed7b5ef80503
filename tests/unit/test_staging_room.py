"""The sum that decides whether a copy fits, and where its terms come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_pve.room import GIB, RESERVE, Memory, Need, read_memory, shortage


def test_what_fits_to_the_last_byte() -> None:
    assert shortage("/t", Need(100), 100, None) is None
    assert shortage("/t", Need(100, stale=60), 40, None) is None
    assert shortage("/t", Need(100), None, Memory(RESERVE + 150, 50)) is None


def test_the_sum_is_told() -> None:
    sentence = shortage("/dev/shm/m", Need(GIB + 1, staged=7, stale=1), GIB - 1, None)
    assert sentence
    for part in (
        "/dev/shm/m",
        str(GIB + 1),
        "1.00 GiB",
        "7 staged",
        "1 of an older copy",
        f"{GIB - 1} free",
        "1 too few",
    ):
        assert part in sentence


def test_the_container_limit_counts_where_df_shows_more() -> None:
    sentence = shortage("/dev/shm/m", Need(101), 1000 * GIB, Memory(limit=RESERVE + 150, used=50))
    assert sentence
    for part in (f"may use {RESERVE + 150}", "uses 50", f"{RESERVE} stay free", "1 too few"):
        assert part in sentence


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": "1000000\n",
    "sys/fs/cgroup/memory.current": "700000\n",
    # "file" holds 300,000 bytes of tmpfs, which nothing can drop.
    "sys/fs/cgroup/memory.stat": "anon 100000\nfile 500000\nshmem 300000\nactive_file 150000\ninactive_file 50000\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "700000\n",
    "sys/fs/cgroup/memory/memory.stat": "cache 9\nactive_file 9\ntotal_active_file 150000\ntotal_inactive_file 50000\n",
}
MEMINFO = {
    "proc/meminfo": "MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:    1900 kB\nHugePages_Total:       0\n"
}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_cgroup_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_memory(write(tmp_path, {**files, **MEMINFO})) == Memory(1000000, 500000)


def test_a_limit_above_the_visible_cgroup_is_in_meminfo(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/memory.max": "max\n", **MEMINFO}
    assert read_memory(write(tmp_path, files)) == Memory(2000 * 1024, 100 * 1024)
    files = {**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", **MEMINFO}
    assert read_memory(write(tmp_path, files)) == Memory(2000 * 1024, 100 * 1024)


@pytest.mark.parametrize("limited", ["system.slice", "system.slice/sglang-model.service"])
def test_a_limit_of_the_unit_or_its_slice_counts(tmp_path: Path, limited: str) -> None:
    files = {**V2, "proc/self/cgroup": "0::/system.slice/sglang-model.service\n"}
    files |= {name.replace("cgroup/", f"cgroup/{limited}/"): text for name, text in V2.items() if "sys/" in name}
    files[f"sys/fs/cgroup/{limited}/memory.max"] = "600000\n"
    assert read_memory(write(tmp_path, files)) == Memory(600000, 500000)


def test_the_tighter_view_counts(tmp_path: Path) -> None:
    files = {**V2, "proc/meminfo": "MemTotal: 500 kB\nMemAvailable: 20 kB\n"}
    assert read_memory(write(tmp_path, files)) == Memory(500 * 1024, 480 * 1024)


def test_no_view_at_all(tmp_path: Path) -> None:
    assert read_memory(tmp_path) is None


def test_this_machine_has_memory() -> None:
    memory = read_memory()
    assert memory and 0 < memory.used < memory.limit
