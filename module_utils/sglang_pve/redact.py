"""What may leave a container in a bundle: no keys, no tokens, no prompts."""

from __future__ import annotations

import re

LEFT_OUT = "[a line about a request was left out]"
# --log-requests and tracebacks of a request print its text.
_REQUEST = re.compile(
    r"\b(Receive|Finish|Abort)\w*: ?obj=|GenerateReqInput\(|input_ids=|\bmessages=\[|prompt['\"]?[=:]"
)
_SECRETS = (
    re.compile(r"(?i)(--[a-z-]*(?:key|token|password|secret)[= ]+)(?!None\b)\S+"),
    re.compile(
        r"(?i)(['\"]?\b[a-z_]*(?:api_key|token|password|secret)['\"]?\s*[=:]\s*)(?!None\b)('[^']*'|\"[^\"]*\"|[^\s,)]+)"
    ),
    re.compile(r"(?i)(bearer\s+)\S+"),
    re.compile(r"()\bhf_[A-Za-z0-9]{16,}"),
)


def line(text: str) -> str:
    """One line of a journal or a file without what may be a secret, or LEFT_OUT for one about a request."""
    if _REQUEST.search(text):
        return LEFT_OUT
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


def text(content: str) -> str:
    return "\n".join(line(one) for one in content.splitlines()) + "\n"
