"""Facts documents made from what is read of a container, and documents that are wrong."""

import pytest
from sglang_pve import facts, shape, verdict

from tests.unit.planning import TABLE, plan

GIB = 1 << 30
STATE = {
    "host": {
        "os": {"id": "ubuntu", "version": "24.04"},
        "glibc": "2.39",
        "python": "3.12.3",
        "memory": {"limit_bytes": 200 * GIB, "total_bytes": 256 * GIB, "used_bytes": 10 * GIB},
        "disks": {"/opt/sglang": {"free_bytes": 50 * GIB}},
        "mounts": {"/run": {"flags": ["rw"]}, "/tmp": {"flags": ["rw", "noexec"]}},
        "compiler": {"name": "g++ 13.3", "path": "/usr/bin/c++"},
    },
    "gpus": {"status": "ok", "message": "", "driver": "580.95.05", "gpus": []},
    "nvcc": "13.0",
    "stacks": {},
    "servers": {},
    "releases": {},
}
STACK = {
    "id": "abc",
    "name": "s",
    "engine": "0.5.11",
    "lane": "cu130",
    "driver_min": 580,
    "nvcc_min": "13.0",
    "lock": "",
}
NEEDS = {
    "stack_id": "abc",
    "stack_disk_gib": 12,
    "disk_free_min_gib": 5,
    "server_memory_gib": 6,
    "servers": 8,
    "staged_bytes": 52 * GIB,
}
CARD = {"uuid": "GPU-a", "name": "c", "compute_cap": "12.0", "memory_total_mib": 97887, "numa_node": 0}
REPORT = {"path": "/m", "architecture": "A", "quantization": None, "config": {"x": 1}, "findings": []}


def of_container(stack=STACK, pve=None, **changed):
    return facts.of_container({**STATE, **changed}, stack, NEEDS, pve or {}, "/usr/local/cuda", True)


def server(index, planned=None, **changed):
    card = {**CARD, "index": index, "uuid": f"GPU-{index}"}
    return {
        "host": f"ct-gpu{index}",
        "plan": plan() if planned is None else planned,
        "model": REPORT,
        "gpu": card,
        **changed,
    }


def documents(*servers):
    return facts.of_servers(of_container(), servers, lambda engine: TABLE)


def test_what_the_container_says_is_a_document_of_the_shape():
    document = documents(server(0), server(1))[0]
    assert shape.check(document) == ([], [])
    assert document["servers"] == ["ct-gpu0", "ct-gpu1"]
    assert [gpu["uuid"] for gpu in document["gpus"]] == ["GPU-0", "GPU-1"]
    assert document["container"]["os"] == {"id": "ubuntu", "version_id": "24.04", "glibc": "2.39", "python": "3.12"}
    assert document["container"]["noexec"] == ["/tmp"]
    assert document["needs"] == {
        "memory_gib": 100,
        "staged_gib": 52,
        "servers": 8,
        "server_memory_gib": 6,
        "disk_gib": 17,
        "stack_disk_gib": 12,
        "disk_spare_gib": 5,
    }
    assert document["toolkit"]["nvcc"] == "13.0" and document["toolkit"]["compiler"] == "g++ 13.3"
    assert document["stack"]["torch_cuda"] == "13.0" and document["stack"]["driver_min"] == "580"
    assert document["history"] == {"current": {"engine": None}, "target": {"engine": "0.5.11"}}
    assert document["plan"]["options"]["attention-backend"] == "flashinfer"
    assert document["plan"]["options"]["disable-radix-cache"] is True


@pytest.mark.parametrize(
    ("there", "package", "taken"),
    [
        (["12.2.0", "11.3.0"], "g++-11", ("g++ 11.3.0", "/usr/bin/g++-11.3.0")),
        (["12.2.0"], "g++-11", ("g++ 11", "/usr/bin/g++-11")),
        (["12.2.0"], "", ("g++ 12.2", "/usr/bin/c++")),
    ],
)
def test_the_host_compiler_is_the_one_that_the_servers_will_use(there, package, taken):
    found = [{"cc": "", "cxx": f"/usr/bin/g++-{version}", "version": version} for version in there]
    stack = {**STACK, "compilers": {"good": ["11.3"], "bad": ["12.2"], "package": package}}
    host = {**STATE["host"], "compiler": {"name": "g++ 12.2", "path": "/usr/bin/c++"}}
    toolkit = of_container(stack, compilers={"found": found, "offers": []}, host=host)["toolkit"]
    assert (toolkit["compiler"], toolkit["compiler_path"]) == taken


def test_servers_that_differ_in_their_plan_have_a_document_each_and_a_missing_card_is_not_known():
    one, other = documents(server(0), server(1, {}, gpu=None))
    assert one["servers"] == ["ct-gpu0"] and "plan" in one and len(one["gpus"]) == 1
    assert other["servers"] == ["ct-gpu1"] and "plan" not in other and "gpus" not in other


def test_a_plan_that_found_errors_has_no_options():
    broken = plan(overrides={"no-such-option": 1})
    (document,) = documents(server(0, broken))
    assert set(document["plan"]) == {"findings"}


def test_what_the_node_says_wins_and_what_it_does_not_know_is_kept():
    pve = {
        "node": {"driver": None, "persistence": True},
        "container": {"os": {"glibc": None}, "memory_limit_gib": 64, "libraries": {"libcuda": "580.95.05"}},
    }
    document = of_container(pve=pve)
    assert document["node"] == {"driver": "580.95.05", "persistence": True}
    assert document["container"]["memory_limit_gib"] == 64
    assert document["container"]["os"]["glibc"] == "2.39"
    assert document["container"]["libraries"] == {"libcuda": "580.95.05"}


@pytest.mark.parametrize(
    ("uids", "user"),
    [
        ({"sglang": 995}, {"name": "sglang", "uid": 995, "system": True}),
        ({"sglang": 1000}, {"name": "sglang", "uid": 1000, "system": False}),
        ({}, {"name": "sglang", "system": True}),
    ],
)
def test_the_account_of_the_servers(uids, user):
    host = {**STATE["host"], "accounts": {"uids": uids, "remove_ipc": True}}
    document = facts.of_container(
        {**STATE, "host": host}, STACK, {**NEEDS, "user": "sglang"}, {}, "/usr/local/cuda", True
    )
    assert document["container"]["service_user"] == user and document["container"]["remove_ipc"] is True


def test_cards_that_do_not_answer_are_told_as_they_said_it():
    document = of_container(gpus={"status": "hung", "message": "no answer", "driver": None, "gpus": []})
    assert document["node"] == {}
    assert (document["container"]["gpu_error"], document["container"]["gpu_error_text"]) == ("hung", "no answer")


def test_a_stack_with_its_own_nvcc_needs_no_toolkit_and_one_for_cuda_12_says_which():
    wheel = "--hash=sha256:" + 64 * "0"
    lock = f"nvidia-cuda-nvcc==13.0.88 {wheel}\ntorch==2.11.0+cu129 {wheel}\n"
    document = of_container({**STACK, "lane": "cu12", "lock": lock}, nvcc=None)
    assert document["stack"]["torch_cuda"] == "12.9"
    assert (document["toolkit"]["nvcc"], document["toolkit"]["source"]) == ("13.0", "pip")


def test_a_toolkit_that_is_not_there_is_known_only_where_the_stack_needs_one():
    assert of_container(nvcc=None)["toolkit"]["found"] is False
    assert "found" not in of_container({**STACK, "nvcc_min": None}, nvcc=None)["toolkit"]


def test_the_engine_that_serves_is_known_where_all_servers_have_one():
    def release(engine):
        return {"error": "", "manifest": {"stack": {"engine": engine}}}

    releases = {"r1": release("0.5.10"), "r2": release("0.5.11"), "bad": {"error": "altered", "manifest": {}}}
    named = [("r1",), ("r1", "r2"), ("bad",)]
    found = [
        of_container(releases=releases, servers={f"gpu{n}": {"release": name} for n, name in enumerate(names)})[
            "history"
        ]
        for names in named
    ]
    assert [one.get("current") for one in found] == [{"engine": "0.5.10"}, None, None]


def test_secrets_are_masked_and_nothing_else():
    document = {
        "schema": 1,
        "plan": {
            "options": {"admin-api-key": "hunter2", "max-total-tokens": "1000"},
            "environment": {"HF_TOKEN": "hunter2", "DB_PASSWORD": "hunter2", "TOKENIZERS_PARALLELISM": "1"},
        },
    }
    assert facts.masked(document)["plan"] == {
        "options": {"admin-api-key": "***", "max-total-tokens": "1000"},
        "environment": {"HF_TOKEN": "***", "DB_PASSWORD": "***", "TOKENIZERS_PARALLELISM": "1"},
    }
    assert document["plan"]["environment"]["HF_TOKEN"] == "hunter2"


def test_lists_of_cpus_are_read_as_the_kernel_writes_them():
    assert facts.cpu_numbers("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert facts.cpu_numbers("") == set()
    assert len(facts.cpu_numbers("1-99999999999")) == facts.MOST_CPUS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], ["f.yml is empty"]),
        ([None], ["f.yml is empty"]),
        ([["schema"]], ["holds list", "a mapping"]),
        ([{"node": {}}], ["schema is None, expected 1"]),
        ([{"schema": 2}], ["schema is 2"]),
        ([{"schema": 1, "node": "pve1"}], ["node is 'pve1'", "a mapping"]),
        ([{"schema": 1, "gpus": {"index": 0}}], ["gpus is {'index': 0}, expected a list"]),
        ([{"schema": 1, "gpus": 8}], ["gpus is 8, expected a list"]),
        ([{"schema": 1, "gpus": [8]}], ["gpus[] is 8, expected a mapping"]),
        (
            [{"schema": 1, "gpus": [{"compute_capability": 12.0}]}],
            ["compute_capability is 12.0", 'in quotes, such as "12.0"'],
        ),
        (
            [{"schema": 1}, {"schema": 1, "node": {"persistence": "on"}}],
            ["document 2", "persistence is 'on'", "true or false"],
        ),
        ([{"schema": 1, "plan": {"options": ["--page-size"]}}], ["plan.options is ['--page-size']", "a mapping"]),
        ([{"schema": 1, "plan": {"findings": [{"id": "x"}]}}], ["plan.findings has {'id': 'x'}", "missing"]),
        ([{"schema": 1, "plan": {"findings": {"id": "x"}}}], ["plan.findings is {'id': 'x'}", "expected a list"]),
        (
            [
                {
                    "schema": 1,
                    "model": {"findings": [{"id": [], "level": "note", "seen": "", "expected": "", "cure": ""}]},
                }
            ],
            ["model.findings has {'id': []", "expected texts"],
        ),
        ([{"schema": 1, "plan": {"options": {"a": [{"b": 1}]}}}], ["plan.options.a is [{'b': 1}]", "texts or numbers"]),
        ([{"schema": 1, "container": {"noexec": [None]}}], ["container.noexec is [None]", "texts or numbers"]),
        ([{"schema": 1, "gpus": [None]}], ["gpus[] is None, expected a mapping"]),
        ([{"schema": 1, "plan": {"options": {8: "x"}}}], ["plan.options has the name 8, expected a text"]),
        ([{"schema": 1, "needs": {"servers": True, "disk_gib": "5"}}], ["servers is True", "disk_gib is '5'"]),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_every_fault(content, words):
    with pytest.raises(verdict.FactsError) as refused:
        verdict.read_documents(content, "f.yml")
    assert [word for word in words if word not in str(refused.value)] == []
