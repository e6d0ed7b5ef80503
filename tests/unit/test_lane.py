"""Which stack a container gets, and what is said where none can run there."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_pve.lane import Place, choose, judge

HASH = "--hash=sha256:" + "a" * 64
CU130 = {
    "name": "e-cu130",
    "engine": "1.0",
    "lane": "cu130",
    "lock": f"sglang==1.0 {HASH}\nnvidia-cuda-nvcc==13.0.88 {HASH}\n",
    "python": ["3.11", "3.12"],
    "driver_min": 580,
    "nvcc_min": "13.0",
    "glibc_min": "2.34",
    "glibc_max": "2.41",
}
CU12 = {
    "name": "e-cu12",
    "engine": "1.0",
    "lane": "cu12",
    "lock": f"sglang==1.0 {HASH}\n",
    "python": ["3.12"],
    "driver_min": 570,
    "nvcc_min": "12.8",
    "arch_list_below": "12.9",
    "glibc_min": "2.34",
    "glibc_max": "2.40",
}
BOTH = [CU12, CU130]
UBUNTU = {"driver": "580.65.06", "nvcc": None, "glibc": "2.39", "python": "3.12.3", "lacking": {}}


def place(**changed: Any) -> Place:
    return Place(**{**UBUNTU, **changed})


@pytest.mark.parametrize(
    ("changed", "name", "words"),
    [
        ({}, "e-cu130", ["driver 580.65.06 (580 or later)", "its own nvcc", "glibc 2.39 (2.34 to 2.41)", "at hand"]),
        ({"driver": "615.10", "nvcc": "12.9"}, "e-cu130", ["driver 615.10"]),
        (
            {"driver": "570.86.15", "nvcc": "12.9"},
            "e-cu12",
            ["lane cu130 does not fit: driver 570.86.15, expected 580"],
        ),
        ({"driver": "570.86.15", "nvcc": "12.8"}, "e-cu12", ["nvcc 12.8 (12.8 or later of CUDA 12)"]),
        ({"nvcc": "12.9", "lacking": {"e-cu130": 3}}, "e-cu12", ["lane cu130 fits, and lacks 3 wheels"]),
        ({"nvcc": "12.9", "lacking": {"e-cu130": 3, "e-cu12": 1}}, "e-cu130", ["3 wheels lacking"]),
        ({"driver": None, "glibc": None}, "e-cu130", ["driver unknown", "glibc unknown"]),
    ],
)
def test_the_first_that_fits_is_chosen_with_its_reason(changed: dict[str, Any], name: str, words: list[str]) -> None:
    choice = choose(BOTH, place(**changed))
    assert (choice.name, choice.findings) == (name, [])
    assert "\n" not in choice.reason and [word for word in words if word not in choice.reason] == []


@pytest.mark.parametrize(
    ("stack", "changed", "id", "seen", "expected", "cure"),
    [
        (CU130, {"driver": "570.86.15"}, "driver-too-old", "driver 570.86.15", "580 or later", "on the node and in"),
        (CU12, {"driver": "565.57", "nvcc": "12.9"}, "driver-too-old", "565.57", "570 or later", "to 570 or later"),
        (CU130, {"glibc": "2.31"}, "lane-glibc", "glibc 2.31", "2.34 to 2.41", "Ubuntu 24.04"),
        (CU130, {"glibc": "2.42"}, "lane-glibc", "glibc 2.42", "2.34 to 2.41", "Ubuntu 24.04"),
        (CU12, {"nvcc": "12.9", "glibc": "2.41"}, "lane-glibc", "glibc 2.41", "2.34 to 2.40", "Debian 12"),
        (CU12, {}, "lane-nvcc", "no nvcc", "12.8 or later of CUDA 12", "Install cuda-toolkit-12-9"),
        (CU12, {"nvcc": "13.0"}, "lane-nvcc", "nvcc 13.0", "12.8 or later of CUDA 12", "sglang_cuda_home"),
        (CU12, {"nvcc": "12.6"}, "lane-nvcc", "nvcc 12.6", "12.8 or later of CUDA 12", "Install cuda-toolkit-12-9"),
        (CU12, {"nvcc": "12.9", "python": "3.11.2"}, "lane-python", "Python 3.11", "one of 3.12", "container"),
    ],
)
def test_an_impossible_pair_has_both_numbers_and_a_cure(
    stack: dict[str, Any], changed: dict[str, Any], id: str, seen: str, expected: str, cure: str
) -> None:
    (finding,) = judge(stack, place(**changed))
    assert (finding.id, finding.level, finding.where) == (id, "error", f"lane {stack['lane']}")
    assert seen in finding.seen and expected in finding.expected and cure in finding.cure


def test_where_nothing_fits_every_lane_says_why() -> None:
    choice = choose(BOTH, place(driver="550.54", glibc="2.42"))
    assert choice.name == "e-cu130"
    assert [(f.where, f.id) for f in choice.findings] == [
        ("lane cu130", "driver-too-old"),
        ("lane cu130", "lane-glibc"),
        ("lane cu12", "driver-too-old"),
        ("lane cu12", "lane-glibc"),
        ("lane cu12", "lane-nvcc"),
    ]


def test_the_order_of_the_stacks_does_not_count() -> None:
    assert choose(BOTH, place()) == choose(BOTH[::-1], place())
