"""No secret of a command line is shown, and no ordinary flag is taken for one."""

from __future__ import annotations

import pytest
from sglang_pve.masking import masked


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "a b", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (
            ["--admin-api-key=x", "--ssl-keyfile-password", "y"],
            ["--admin-api-key=***", "--ssl-keyfile-password", "***"],
        ),
        (["--api-k", "x", "HF_TOKEN=y"], ["--api-k", "***", "HF_TOKEN=***"]),
        (["--api-key", "--looks-like-a-flag"], ["--api-key", "***"]),
        (
            ["sh", "-c", "A=1 HF_TOKEN=x run --api-key  y --tp 2"],
            ["sh", "-c", "A=1 HF_TOKEN=*** run --api-key  *** --tp 2"],
        ),
        (["http://user:word@host/x"], ["http://***@host/x"]),
        (
            ["--tokenizer-path", "/t", "--max-total-tokens", "9", "--ssl-keyfile", "/k.pem"],
            ["--tokenizer-path", "/t", "--max-total-tokens", "9", "--ssl-keyfile", "/k.pem"],
        ),
    ],
)
def test_secrets_are_masked_and_flags_are_not(words: list[str], shown: list[str]) -> None:
    assert masked(words) == shown
