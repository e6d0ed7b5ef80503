"""The lab's stand-in engine, as a real process that a real HTTP client talks to."""

import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from engine_process import MTP, NO_RADIX, UUID

from lab.engine.sglang import answers

ORDER = """server_args=ServerArgs(model_path=
Init torch distributed begin.
Load weight begin. avail mem=94.24 GB
Load weight end. elapsed=
Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.11GB, ssm_state size: 5.77GB intermediate_ssm
KV Cache is allocated. #tokens:
Memory pool end. avail mem=
Using hybrid linear attention backend for hybrid GDN models.
Capture cuda graph begin.
Capture cuda graph end.
type=Qwen3_5ForCausalLMMTP
Capture draft cuda graph end.
max_total_num_tokens=
Application startup complete.
Uvicorn running on http://127.0.0.1:
The server is fired up and ready to roll!"""


def test_a_start_says_what_the_real_one_says_and_serves_what_it_said(start):
    run = start(*NO_RADIX, *MTP, "--max-running-requests", "40", "--enable-metrics", "--context-length", "8k")
    log, at = run.ready().log(), 0
    for line in ORDER.splitlines():
        assert line in log[at:], f"{line!r} is missing or out of place"
        at = log.index(line, at)
    tokens = int(re.search(r"#tokens: (\d+)", log)[1])
    info = run.get("/server_info")
    inside = info["internal_states"][0]
    assert (info["version"], info["max_total_num_tokens"], info["context_length"]) == ("0.5.11", tokens, 8000)
    assert (info["speculative_algorithm"], info["tp_size"], info["status"]) == ("EAGLE", 1, "ready")
    assert (inside["max_mamba_cache_size"], inside["effective_max_running_requests_per_dp"]) == (40, 40)
    assert run.get("/model_info")["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert run.get("/v1/models")["data"][0]["max_model_len"] == 8000
    assert run.get("/v1/loads")["loads"][0]["max_total_num_tokens"] == tokens
    assert run.ask("/flush_cache", {})[0] == 200
    assert run.ask("/nothing")[0] == 404
    environment = Path(f"/proc/{run.child()}/environ").read_text()
    assert f"CUDA_VISIBLE_DEVICES={UUID.format(3)}" in environment
    assert 80_000 < int(re.search(r"SGLANG_LAB_GPU_MIB=(\d+)", environment)[1]) < 97_887
    assert "sglang_lab_scheduler" in Path(f"/proc/{run.child()}/cmdline").read_text()


@pytest.mark.parametrize(
    ("model", "length", "env"),
    [("model", "3.1", {"SGLANG_SIMULATE_ACC_LEN": "3.1"}), ("model-no-mtp", "1.0", {"SGLANG_SIMULATE_ACC_LEN": "3.1"})],
)
def test_a_head_without_tensors_accepts_nothing(start, model, length, env):
    run = start(*NO_RADIX, *MTP, "--max-running-requests", "8", "--enable-metrics", model=model, **env).ready()
    run.get("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 4}})
    page = run.ask("/metrics")[1]
    assert re.search(rf'sglang:spec_accept_length\{{engine_type="unified",.*,tp_rank="0"}} {length}\n', page)
    assert re.search(r"sglang:num_requests_total{.*} 2.0\n", page)


def test_answers(start):
    run = start(*NO_RADIX, "--reasoning-parser", "qwen3").ready()
    ask = {"messages": [{"role": "user", "content": "What is 17 + 25? The number only."}], "max_tokens": 200}
    answer = run.get("/v1/chat/completions", ask)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("42", answers.THOUGHT)
    assert answer["usage"]["total_tokens"] == sum(answer["usage"][f"{k}_tokens"] for k in ("prompt", "completion"))
    quick = run.get("/v1/chat/completions", {**ask, "chat_template_kwargs": {"enable_thinking": False}})
    assert quick["choices"][0]["message"]["content"] == "42"
    assert quick["choices"][0]["finish_reason"] == "stop"
    cut = run.get("/v1/chat/completions", {**ask, "max_tokens": 5})["choices"][0]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", None)
    plain = run.get("/v1/completions", {"prompt": ["What is 2+3?", "Repeat: a b"], "max_tokens": 20, "logprobs": 1})
    assert [choice["text"] for choice in plain["choices"]] == ["5", "a b"]
    params = {"max_new_tokens": 90, "ignore_eos": True}
    native = run.get("/generate", {"input_ids": [72, 105], "sampling_params": params, "return_logprob": True})
    assert native["meta_info"]["completion_tokens"] == len(native["output_ids"]) == 90
    assert native["meta_info"]["finish_reason"] == {"type": "length", "length": 90}
    assert len(native["meta_info"]["output_token_logprobs"]) == 90
    long = run.ask("/generate", {"input_ids": [1] * 300_000})
    assert (long[0], "longer than the model's context length" in long[1]) == (400, True)
    assert run.ask("/v1/completions", {})[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Repeat: one two three"}]}),
        ("/v1/completions", {"prompt": "Repeat: one two three", "max_tokens": 50}),
        ("/generate", {"text": "Repeat: one two three"}),
    ],
)
def test_streams(start, path, body):
    run = start(*NO_RADIX, "--reasoning-parser", "qwen3").ready()
    status, text = run.ask(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    events = [line[6:] for line in text.split("\n\n") if line]
    assert (status, events.pop()) == (200, "[DONE]")
    found = [json.loads(event) for event in events]
    if path == "/generate":
        assert found[-1]["text"] == "one two three"
        assert [bool(event["meta_info"]["finish_reason"]) for event in found] == [False, False, False, True]
        return
    assert found.pop()["usage"]["completion_tokens"] > 10
    choices = [event["choices"][0] for event in found]
    said = [choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices]
    assert "".join(said).strip() == "one two three"
    assert choices[-1]["finish_reason"] == "stop"


def test_a_key_is_asked_for_but_not_on_health(start):
    run = start(*NO_RADIX, "--api-key", "secret").ready()
    assert run.ask("/health")[0] == 200
    assert run.ask("/v1/models") == (401, '{"error": "Unauthorized"}')
    assert run.ask("/v1/models", key="secret")[0] == 200
    assert run.ask("/metrics")[0] == 404


def test_the_port_is_open_and_says_503_until_the_server_is_ready(start, fault):
    fault(stage="warmup", kind="slow", seconds=1)
    run = start(*NO_RADIX).wait_for("Uvicorn running")
    assert run.ask("/health")[0] == run.ask("/health_generate")[0] == 503
    assert run.ready().ask("/health")[0] == 200


def test_it_listens_on_its_own_address_only(start):
    run = start(*NO_RADIX).ready()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", run.port), timeout=5)


def test_a_taken_port_shows_after_loading(start):
    first = start(*NO_RADIX).ready()
    second = start(*NO_RADIX, "--port", str(first.port))
    assert second.ends() == 1
    assert f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {first.port})" in second.log()
    assert "Memory pool end" in second.log()


# Ending


def test_a_stop_waits_for_running_requests_and_ends_by_signal_9(start):
    run = start(*NO_RADIX, SGLANG_LAB_TOKEN_SECONDS="0.02").ready()
    answered = []
    body = {"text": "Repeat: to the end", "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
    client = threading.Thread(target=lambda: answered.append(run.get("/generate", body)))
    client.start()
    run.wait_for("#new-token: 18")
    run.process.send_signal(signal.SIGTERM)
    run.wait_for("Draining requests and shutting down...")
    assert run.ask("/health")[0] == 503
    assert run.ends() == -9
    client.join(timeout=30)
    assert answered[0]["text"].startswith("to the end")
    assert "Remaining number of requests 1." in run.log()


def test_forced_shutdown_does_not_wait(start):
    run = start(*NO_RADIX, SGLANG_LAB_TOKEN_SECONDS="60", SGL_FORCE_SHUTDOWN="1", SGLANG_LAB_FAULTS="/nowhere")
    run.wait_for("Uvicorn running").process.send_signal(signal.SIGTERM)
    assert run.ends() == -9
    assert "Signal SIGTERM received while force shutdown flag set. Force exiting." in run.log()


def test_a_dead_scheduler_takes_the_server_with_it(start):
    run = start(*NO_RADIX).ready()
    child = run.child()
    os.kill(child, signal.SIGKILL)
    assert run.ends() == -9
    assert f"Subprocess scheduler_0 (pid={child}) crashed with exit code -9. Triggering SIGQUIT" in run.log()
    assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in run.log()


def test_a_dead_server_takes_the_scheduler_with_it(start):
    run = start(*NO_RADIX).ready()
    child = run.child()
    run.process.kill()
    run.ends()
    end = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_hung_scheduler_fails_the_health_check(start):
    run = start(*NO_RADIX, SGLANG_HEALTH_CHECK_TIMEOUT="0.3").ready()
    os.kill(run.child(), signal.SIGSTOP)
    assert run.ask("/health")[0] == 503
    assert "Health check failed. Server couldn't get a response from detokenizer for last 0.3 seconds." in run.log()
