"""Whether speculative decoding does anything on a server that serves: what its own metrics say of accepted drafts."""

from __future__ import annotations

import re

from .findings import Finding
from .gate import GateError, fetch

# One token a step is what a server gives without any draft.
LEAST_ACCEPTED = 1.2
_GAUGE = re.compile(r"^sglang:spec_accept_length(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def accept_length(base: str, timeout_s: float = 30) -> float | None:
    """Mean tokens a step, the target's own included, as /metrics says; None where it has none: no draft, nothing ran
    yet, or no metrics.

    Several schedulers report one each; the least counts. Raises GateError where the server does not answer.
    """
    try:
        status, text = fetch(f"{base}/metrics", timeout_s=timeout_s)
    except OSError as error:
        raise GateError(f"{base}/metrics failed: {error}") from error
    lengths = [float(value) for value in _GAUGE.findall(str(text)) if float(value) > 0] if status == 200 else []
    return min(lengths, default=None)


def judge(length: float | None) -> list[Finding]:
    """The finding about a server that has answered; none where no length is known."""
    if length is None or length >= LEAST_ACCEPTED:
        return []
    expected = f"at least {LEAST_ACCEPTED} tokens a step with MTP"
    cure = "The draft does nothing: check the checkpoint's head (verify_model.yml), or set sglang_mtp: false."
    return [Finding("mtp-accept-length", "warning", f"{length:.2f} tokens a step", expected, cure)]
