"""The language of rules: what each clause says of facts that are known, not set and not known."""

import pytest
from sglang_pve.conditions import ConditionError, fill, parse, version_key
from sglang_pve.shape import Facts

FACTS = Facts(
    {
        "node": {"driver": "580.95.05", "majors": {"nvidia": 195}, "persistence": True},
        "gpus": [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}],
        "container": {"config": {"lock": None, "devices": [{"path": "/dev/nvidia0"}, {}]}, "disk_free_gib": 0.19},
        "model": {"quantization": None, "shards": {"missing": []}},
        "stack": {"engine": "0.5.11", "python": ["3.11", "3.12"]},
        "plan": {
            "options": {"page-size": "64", "max-running-requests": "16", "cuda-graph-bs": ["1", "2"]},
            "environment": {"A": "b"},
        },
    }
)


def answer(written, facts=FACTS, **bound):
    found = parse(written, bound).answer(facts)
    return found.value, sorted(found.missing)


@pytest.mark.parametrize(
    ("clause", "value"),
    [
        ("node.driver >= 580", True),
        ("node.driver < 580.95.6", True),
        ("node.driver is 580.95.05", True),
        ("node.driver is not {node.driver}", False),
        ("stack.engine < 0.5.11.post1", True),
        ("stack.engine > 0.5.11rc1", True),
        ("stack.engine > 0.5.9", True),
        ("container.disk_free_gib < 0.5", True),
        ("--page-size > 1", True),
        ("--page-size in [16, 32, 64]", True),
        ("--page-size not in [16, 32, 64]", False),
        ("--page-size is {--max-running-requests} * 4", True),
        ("--page-size > {--max-running-requests} + 48", False),
        ("--max-running-requests divides {--page-size}", True),
        ("--page-size divides {--max-running-requests}", False),
        ("--page-size not divides 256", False),
        ("--page-size not divides 96", True),
        ("--attention-backend is set", False),
        ("--attention-backend is flashinfer", False),
        ("--attention-backend is not flashinfer", True),
        ("--attention-backend not in [fa3]", True),
        ("--attention-backend > 1", False),
        ("--cuda-graph-bs matches ^1, 2$", True),
        ("$A matches ^B$", False),
        ("$A not matches ^B$", True),
        ("$NOT_THERE is not set", True),
        ("node.persistence is true", True),
        ("node.majors.nvidia is 195", True),
        ("node.majors.nvidia-uvm is set", False),
        ("container.config.lock is set", False),
        ("model.quantization is set", False),
        ("model.quantization.quant_method is fp8", False),
        ("model.shards.missing is []", True),
        ("model.shards.missing is not []", False),
        ("gpus[].uuid has GPU-b", True),
        ("gpus[].uuid lacks GPU-c", True),
        ("gpus[].index has 1", True),
        ("container.config.devices[].path has /dev/nvidia0", True),
        ("stack.engine in {stack.python}", False),
    ],
)
def test_a_clause_on_facts_that_are_known(clause, value):
    assert answer(clause) == (value, [])


@pytest.mark.parametrize(
    ("clause", "missing"),
    [
        ("toolkit.nvcc < 12.9", ["toolkit.nvcc"]),
        ("toolkit.nvcc is set", ["toolkit.nvcc"]),
        ("toolkit.nvcc not in [12.9]", ["toolkit.nvcc"]),
        ("node.driver < {stack.driver_min}", ["stack.driver_min"]),
        ("node.driver is not {stack.driver_min}", ["stack.driver_min"]),
        ("gpus[].mig has true", ["gpus[].mig"]),
        ("container.config.devices[].path lacks /dev/nvidiactl", ["container.config.devices[].path"]),
        ("container.config.devices[].path has /dev/nvidia{node.gpus}", ["node.gpus"]),
        ("model.shards.missing has {model.path}", ["model.path"]),
    ],
)
def test_a_clause_on_facts_that_are_not_known_names_them(clause, missing):
    # The last but one names a list in a text, which no document gives.
    if "{node.gpus}" in clause:
        with pytest.raises(ConditionError, match=r"node\.gpus"):
            answer(clause)
    else:
        assert answer(clause) == (None, missing)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (["node.driver >= 1", "toolkit.nvcc < 13"], (None, ["toolkit.nvcc"])),
        (["node.driver < 1", "toolkit.nvcc < 13"], (False, [])),
        ({"any": ["node.driver < 1", "toolkit.nvcc < 13"]}, (None, ["toolkit.nvcc"])),
        ({"any": ["node.driver >= 1", "toolkit.nvcc < 13"]}, (True, [])),
        ({"not": "toolkit.nvcc < 13"}, (None, ["toolkit.nvcc"])),
        ({"not": ["node.driver >= 1", "stack.engine is 0.5.11"]}, (False, [])),
        ({"not": {"any": ["node.driver < 1", "stack.engine is 0.6"]}}, (True, [])),
        (
            {"all": ["toolkit.nvcc < 13", {"any": ["toolkit.cccl >= 3", "toolkit.nvcc < 12"]}]},
            (None, ["toolkit.cccl", "toolkit.nvcc"]),
        ),
    ],
)
def test_what_is_known_decides_alone_or_not_at_all(written, value):
    assert answer(written) == value


def test_an_element_of_a_list_has_the_name_that_the_rule_gives_it():
    one = FACTS.bind("card", "gpus", {"uuid": "GPU-b", "index": 1, "numa_node": None})
    assert answer("card.uuid in {gpus[].uuid}", one, card="gpus") == (True, [])
    assert answer("card.numa_node is set", one, card="gpus") == (False, [])
    assert answer("card.mig is true", one, card="gpus") == (None, ["card.mig"])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("node.driver ~ 580", "no operator in its place"),
        ("node.driver", "no operator in its place"),
        ("node.drivr >= 580", "did you mean node.driver"),
        ("gpu.index is 0", "no fact 'gpu.index'"),
        ("node.driver >= {node.drivr}", "did you mean node.driver"),
        ("node.driver >= high", "'high' is no version"),
        ("container.disk_free_gib < much", "'much' is no number"),
        ("node.name < 3", "is a text, which has no order"),
        ("stack.engine divides 3", "is a version, expected a number"),
        ("--page-size not divides much", "'much' is no option"),
        ("node.name has x", "is a text, expected a list"),
        ("node.name matches (", "missing )"),
        ("node.name is set now", "takes no value"),
        ("node.name is", "takes a value"),
        ({"some": ["node.driver >= 1"]}, "one of all, any, not"),
        ({"any": []}, "one of all, any, not"),
        ([], "one of all, any, not"),
        (5, "one of all, any, not"),
    ],
)
def test_what_is_not_of_the_language_is_refused_in_words(written, words):
    with pytest.raises(ConditionError) as refused:
        parse(written, {})
    assert words in str(refused.value)


def test_versions_are_sorted_as_versions():
    ordered = ["0.5.9", "0.5.10rc1", "0.5.10", "0.5.10.post1", "0.5.11+cu129", "0.6", "12.0", "12.9", "580.65.06"]
    assert sorted(ordered, key=version_key) == ordered
    assert version_key("0.5.0") == version_key("0.5") and version_key("v12.0") == version_key("12")
    assert version_key("unknown") is None


def test_a_message_names_what_was_seen():
    text = "driver {node.driver}, {--page-size} of {--tp-size}, {container.disk_free_gib} GiB, {toolkit.nvcc}"
    assert fill(text, FACTS) == "driver 580.95.05, 64 of not set, 0.19 GiB, unknown"
    assert fill("{stack.python}, {model.shards.missing}, {node.persistence}", FACTS) == "3.11, 3.12, none, yes"
