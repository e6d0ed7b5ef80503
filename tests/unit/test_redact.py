"""What leaves a container in a bundle holds no key, no token and no prompt."""

import pytest
from sglang_pve import redact


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m sglang.launch_server --api-key hunter2 --port 30000",
        "launch_server --api-key=hunter2",
        "server_args=ServerArgs(model_path='/m', api_key='hunter2', admin_api_key=\"hunter2\", port=30000)",
        "SGLANG_API_KEY=hunter2",
        '{"HF_TOKEN": "hunter2", "other": 1}',
        "Authorization: Bearer hunter2",
        "Receive: obj=GenerateReqInput(text='hunter2', sampling_params={})",
        "Finish: obj=ChatCompletion(messages=[{'role': 'user', 'content': 'hunter2'}])",
        "ValueError in request prompt='hunter2'",
    ],
)
def test_secrets_and_prompts_are_gone(line):
    assert "hunter2" not in redact.line(line)


def test_a_hub_token_is_gone_wherever_it_stands():
    assert "hf_" + "a" * 30 not in redact.line("downloading with hf_" + "a" * 30)


@pytest.mark.parametrize(
    "line",
    [
        "max_total_num_tokens=153646, chunked_prefill_size=8192, max_running_requests=197",
        "KV Cache is allocated. #tokens: 153646, K size: 4.69 GB, V size: 4.69 GB",
        "server_args=ServerArgs(api_key=None, tokenizer_path='/m')",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_what_a_diagnosis_needs_stays(line):
    assert redact.line(line) == line


def test_a_whole_file_keeps_its_lines():
    assert redact.text("a\nAPI_KEY=x\nb") == "a\nAPI_KEY=***\nb\n"
