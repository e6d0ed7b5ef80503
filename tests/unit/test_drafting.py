"""What /metrics says of drafts, from a real HTTP server, and what is made of it."""

import pytest
from sglang_pve.drafting import accept_length, judge
from sglang_pve.gate import GateError

NAME = "sglang:spec_accept_length"
LABELS = '{engine_type="unified",model_name="m",tp_rank="0"}'


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (f"# TYPE {NAME} gauge\n{NAME}{LABELS} 3.28\n", 3.28),
        (f"{NAME} 1.5\n{NAME}{LABELS} 1.01\nsglang:spec_accept_rate 0.2\n", 1.01),
        (f"{NAME}{LABELS} 0.0\n", None),
        ("sglang:gen_throughput 12.0\n", None),
    ],
)
def test_the_length_is_read_from_the_metrics(serve, text, length):
    assert accept_length(serve({"/metrics": (200, text)})) == length


def test_a_server_without_metrics_says_nothing_and_one_that_is_gone_is_an_error(serve):
    assert accept_length(serve({"/metrics": (404, f"{NAME} 1.0\n")})) is None
    with pytest.raises(GateError, match="failed"):
        accept_length("http://127.0.0.1:9")


def test_a_draft_that_does_nothing_is_a_finding_with_both_numbers():
    (found,) = judge(1.05)
    assert (found.level, found.seen) == ("warning", "1.05 tokens a step") and "1.2" in found.expected
    assert judge(1.2) == judge(3.3) == judge(None) == []
