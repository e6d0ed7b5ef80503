"""The lab engine's wheel, its command line and its pools."""

import json
import os
import subprocess

import pytest

from lab.engine import build_wheel
from lab.engine.sglang import pools
from lab.engine.sglang.flags import build_parser, human_readable_int, read_table


def test_the_wheel_has_the_same_bytes_every_time(tmp_path):
    first, second = build_wheel.build(tmp_path / "a"), build_wheel.build(tmp_path / "b")
    assert first[1] == second[1]
    assert first[0].read_bytes() == second[0].read_bytes()


def test_the_wheel_installs_its_command(lab):
    command = [lab / "site/bin/sglang", "version"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(lab / "site")}, stdout=subprocess.PIPE)
    assert done.stdout == b"sglang version: 0.5.11\n"


@pytest.fixture(scope="module")
def rows():
    return read_table(build_wheel.FLAGS.read_text())


def test_every_flag_of_the_table_is_accepted(rows):
    samples = {"int": "7", "float": "0.5", "json": "{}", "json_list_type": "[1]", "human_readable_int": "8k"}
    parser = build_parser(rows)
    assert len(rows) == 374
    for row in rows:
        for name in [row["option"], *filter(None, row["aliases"].split(","))]:
            argv = ["--model-path", "/m", name]
            if row["type"] and row["nargs"] != "?":
                argv.append(str(json.loads(row["choices"])[0]) if row["choices"] else samples.get(row["type"], "x"))
            parser.parse_args(argv)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model-path", "m", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["--model-path", "m", "--attention-backend", "best"], "invalid choice: 'best'"),
        (["--model-path", "m", "--mamba", "x"], "ambiguous option"),
        (["--model-path", "m", "--port", "http"], "invalid int value: 'http'"),
        (["--model-path", "m", "--context-length", "1.5Ki"], "Invalid integer value: '1.5Ki'"),
        (["--model-path", "m", "--mm-process-config", "{"], "invalid loads value"),
        ([], "required: --model-path"),
    ],
)
def test_a_wrong_command_line_is_refused(rows, argv, said, capsys):
    with pytest.raises(SystemExit) as left:
        build_parser(rows).parse_args(argv)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_unique_prefixes_and_lists_are_taken(rows):
    argv = ["--model", "m", "--max-run", "9", "--cuda-graph-bs", "1", "2", "--no-record-nolora-graph"]
    found = build_parser(rows).parse_args(argv)
    assert (found.max_running_requests, found.cuda_graph_bs, found.record_nolora_graph) == (9, [1, 2], False)


@pytest.mark.parametrize(("text", "value"), [("8k", 8000), ("25.6k", 25600), ("1Ki", 1024), ("2M", 2000000)])
def test_human_readable_ints(text, value):
    assert human_readable_int(text) == value


# Pools: what a run of the real engine on one H200 found, with 94.397 GiB free before and 43.27628 GiB after the weights

RADIX = {"disable_radix_cache": False}
EXTRA = {**RADIX, "mamba_scheduler_strategy": "extra_buffer"}
BF16 = {"mamba_ssm_dtype": "bfloat16"}
DRAFT = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
REAL = [
    (EXTRA, (111, 293639, 22)),
    ({**EXTRA, "disable_overlap_schedule": True}, (111, 293639, 27)),
    (RADIX, (111, 293639, 37)),
    ({}, (111, 293639, 111)),
    (BF16, (219, 292235, 219)),
    ({**BF16, "mem_fraction_static": 0.92, "max_running_requests": 256}, (256, 278878, 256)),
    ({**EXTRA, **DRAFT, "max_running_requests": 48}, (20, 56390, 4)),
    ({**DRAFT, "max_running_requests": 40}, (40, 84578, 40)),
    ({**BF16, **DRAFT, "max_running_requests": 72}, (72, 123458, 72)),
]


class Qwen:
    def __init__(self):
        self.full_layers, self.linear_layers = 16, 48
        self.text = {
            "linear_num_value_heads": 48,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_key_value_heads": 4,
            "head_dim": 256,
        }


def size(**changes):
    settings = {
        "max_running_requests": None,
        "mem_fraction_static": 0.9,
        "speculative_algorithm": None,
        "speculative_num_draft_tokens": None,
        "max_mamba_cache_size": None,
        "disable_radix_cache": True,
        "mamba_full_memory_ratio": 0.9,
        "page_size": 1,
        "max_total_tokens": None,
        "mamba_scheduler_strategy": "no_buffer",
        "disable_overlap_schedule": False,
        "mamba_ssm_dtype": None,
        "kv_cache_dtype": "auto",
        **changes,
    }
    shape = pools.Shape(Qwen(), settings)
    found = pools.size_pools(shape, settings, 8192, 94.397, 43.27628)
    return shape, found


@pytest.mark.parametrize(("changes", "measured"), REAL)
def test_pools_are_those_that_the_real_engine_found(changes, measured):
    _, found = size(**changes)
    assert (found.slots, found.tokens, found.running) == measured


def test_bytes_per_slot_and_token():
    shape, _ = size()
    assert (shape.slot, shape.cell, shape.draft_cell) == (153_944_064, 65_536, 4_096)
    assert size(kv_cache_dtype="fp8_e4m3")[0].cell == 32_768


def test_a_cap_and_a_page_size_cut_the_tokens():
    assert size(max_total_tokens=100_001, page_size=64)[1].tokens == 99_968


def test_no_room_is_an_error_and_so_are_empty_pools():
    with pytest.raises(RuntimeError, match="Not enough memory"):
        size(**DRAFT, max_running_requests=48)
    with pytest.raises(AssertionError, match="max_running_request is zero"):
        pools.check(pools.Pools(2, 10_000, 0), 8192)
    with pytest.raises(AssertionError, match="Memory pool size is too small"):
        pools.check(pools.Pools(9, 6, 1), 8192)
