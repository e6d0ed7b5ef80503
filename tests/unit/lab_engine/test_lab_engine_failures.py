"""How the lab's stand-in engine refuses to start, and how it fails on demand."""

import subprocess

import pytest
from engine_process import MTP, NO_RADIX, UUID, cards

# Refusals

EXTRA_BUFFER = ["--mamba-scheduler-strategy", "extra_buffer"]
REFUSED = [
    ([*EXTRA_BUFFER, *NO_RADIX], 1, "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache"),
    (MTP, 1, "ValueError: Speculative decoding for Qwen3_5ForConditionalGeneration is not compatible with radix"),
    (["--context-length", "1M"], 1, "ValueError: Warning: User-specified context_length (1000000) is greater"),
    (["--linear-attn-decode-backend", "flashinfer"], 1, "on SM100+ requires --mamba-ssm-dtype bfloat16, got None"),
    ([*NO_RADIX, *MTP[:2], *MTP[-2:]], 1, "\nAssertionError\n"),
    ([*EXTRA_BUFFER, "--page-size", "96"], 1, "AssertionError: mamba_track_interval 256 must be divisible"),
    (["--attention-backend", "trtllm_mha"], 1, "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs"),
    (["--attention-backend", "fa3"], -9, "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90."),
    (["--attention-backend", "torch_native"], -9, "are the only supported backends on Blackwell GPUs for hybrid GDN"),
    ([*NO_RADIX, *MTP, "--max-running-requests", "200"], -9, "RuntimeError: Not enough memory. Please try to"),
    ([*EXTRA_BUFFER, "--max-mamba-cache-size", "4"], -9, "AssertionError: max_running_request is zero"),
    (["--mem-fraction-static", "0.999"], -9, "CUDA out of memory."),
    (["--no-such-flag"], 2, "error: unrecognized arguments: --no-such-flag"),
]


@pytest.mark.parametrize(("flags", "status", "said"), REFUSED)
def test_combinations_are_refused_as_the_real_one_does(start, flags, status, said):
    run = start(*flags)
    assert run.ends() == status, run.log()
    assert said in run.log()
    assert ("Traceback (most recent call last):" in run.log()) == (status != 2)
    assert ("Received sigquit from a child process." in run.log()) == (status == -9)


def test_without_a_known_card_there_is_no_accelerator(start, tmp_path):
    run = start(CUDA_VISIBLE_DEVICES="GPU-unknown")
    assert run.ends() == 1
    assert "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) is available." in run.log()
    hopper = cards(tmp_path / "hopper-smi", "9.0", 143771)
    start("--attention-backend", "fa3", SGLANG_LAB_NVIDIA_SMI=str(hopper), CUDA_VISIBLE_DEVICES="7").ready()


def test_a_missing_shard_gives_garbage_and_missing_weights_an_error(start, lab, tmp_path):
    short = copy(lab, tmp_path, "model-00002-of-00003.safetensors")
    run = start(*NO_RADIX, "--model-path", str(short)).ready()
    found = run.get("/generate", {"text": "What is 2+3?", "sampling_params": {"max_new_tokens": 8}})
    assert "5" not in found["text"]
    for file in short.glob("*.safetensors"):
        file.unlink()
    empty = start(*NO_RADIX, "--model-path", str(short))
    assert empty.ends() == -9
    assert f"RuntimeError: Cannot find any model weights with `{short}`" in empty.log()
    assert start("--model-path", str(tmp_path / "nowhere")).ends() == 1


def copy(lab, tmp_path, *without):
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in (lab / "model").iterdir():
        if file.name not in without:
            (folder / file.name).symlink_to(file)
    return folder


# Failing on demand

AT_STAGE = [
    ("import", 1, "[sgl_kernel] CRITICAL: Could not load any common_ops library!", ""),
    ("args", 1, "No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) is available.", ""),
    ("distributed", -9, "SGLang only supports sm75 and above.", "server_args="),
    ("weights", -9, "Cannot find any model weights with `", "Init torch distributed ends."),
    ("pools", -9, "Not enough memory. Please try to increase --mem-fraction-static.", "Load weight end."),
    ("graphs", -9, "torch.OutOfMemoryError: CUDA out of memory.", "Memory pool end."),
    ("warmup", -9, "Initialization failed. warmup error: Traceback", "Uvicorn running"),
    ("ready", -9, "Scheduler hit an exception: Traceback", "ready to roll!"),
    ("serving", -9, "torch.OutOfMemoryError: CUDA out of memory.", "ready to roll!"),
]
BEFORE = [entry[3] for entry in AT_STAGE]


@pytest.mark.parametrize(("stage", "status", "said", "after"), AT_STAGE)
def test_an_exit_at_each_stage(start, fault, stage, status, said, after):
    fault(stage=stage, kind="exit")
    run = start(*NO_RADIX)
    assert run.ends() == status
    assert said in run.log()
    assert after in run.log()
    later = [text for text in BEFORE[BEFORE.index(after) + 1 :] if text != after]
    assert not [text for text in later if text in run.log()]


@pytest.mark.parametrize(("stage", "said"), [("weights", "Init torch distributed ends."), ("warmup", "Uvicorn run")])
def test_a_hang_goes_no_further(start, fault, stage, said):
    fault(stage=stage, kind="hang")
    run = start(*NO_RADIX).wait_for(said)
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(timeout=0.4)
    assert "ready to roll!" not in run.log()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ninja", "Exception: Capture cuda graph failed: ninja exited with status 1"),
        ("header", "fatal error: curand.h: No such file or directory"),
        ("oom-killed", "Rank 0 scheduler died during initialization (exit code: -9)"),
        ("shared-memory", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required:"),
    ],
)
def test_kinds_say_what_the_real_engine_says(start, fault, kind, said):
    fault(kind=kind)
    run = start(*NO_RADIX)
    assert run.ends() != 0
    assert said in run.log()


def test_it_can_die_after_a_while(start, fault):
    fault(kind="die-after", seconds=0.5)
    run = start(*NO_RADIX).ready()
    assert run.ask("/health")[0] == 200
    assert run.ends() == -9


def test_garbage_and_wrong_pools(start, fault):
    right = start(*NO_RADIX).ready().get("/server_info")["max_total_num_tokens"]
    fault(kind="wrong-pools")
    assert start(*NO_RADIX).ready().get("/server_info")["max_total_num_tokens"] == int(right * 0.9)
    fault(kind="garbage")
    found = start(*NO_RADIX).ready().get("/v1/completions", {"prompt": "What is 2+3?"})
    assert "5" not in found["choices"][0]["text"]


def test_a_fault_is_for_one_card_and_one_release(start, fault):
    fault("gpu4", stage="args", kind="exit")
    fault(UUID.format(3), stage="args", kind="exit", release="r2")
    start(*NO_RADIX, SGLANG_PVE_RELEASE="r1").ready()
    assert start(*NO_RADIX, SGLANG_PVE_RELEASE="r2").ends() == 1
    assert start(*NO_RADIX, CUDA_VISIBLE_DEVICES=UUID.format(4)).ends() == 1


def test_a_fault_file_without_sense_is_named(start, fault, tmp_path):
    fault(stage="lunch", kind="exit")
    run = start(*NO_RADIX)
    assert run.ends() == 1
    assert f"{tmp_path}/faults/all: stage 'lunch' is none of import, args," in run.log()
