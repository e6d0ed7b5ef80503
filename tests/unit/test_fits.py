"""How many running requests would have fitted, against what the real engine refused (48) and served (40)."""

import json

from sglang_pve import fits

from tests.unit.planning import CASES, MODEL

LINES = (CASES / "journals/mtp-noradix-48-not-enough-memory.log").read_text().splitlines()
SPECULATIVE = [
    "--speculative-algorithm",
    "NEXTN",
    "--speculative-num-steps",
    "3",
    "--speculative-num-draft-tokens",
    "4",
]
POOLS = ["--max-running-requests", "48", "--mem-fraction-static", "0.9", "--context-length", "8192"]
ARGV = [*SPECULATIVE, "--speculative-eagle-topk", "1", "--disable-radix-cache", *POOLS]


def test_the_number_is_the_most_that_the_formulas_allow():
    assert fits.running(LINES, "0.5.11", ARGV, MODEL["config"]) == 46


def test_what_is_not_known_gives_no_number():
    assert fits.running(LINES, "9.9", ARGV, MODEL["config"]) is None
    assert fits.running([], "0.5.11", ARGV, MODEL["config"]) is None
    assert fits.running(LINES, "0.5.11", ARGV, {}) is None


def test_it_is_read_from_a_release(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL["config"]))
    manifest = {"model": {"path": str(tmp_path)}, "stack": {"engine": "0.5.11"}, "plan": {"argv": ARGV}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert fits.of_release(tmp_path, LINES) == 46
    assert fits.of_release(tmp_path / "none", LINES) is None
