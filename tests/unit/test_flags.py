"""What the engine would refuse, or take for something else, is found before it starts."""

import pytest
import yaml
from sglang_pve.flags import FlagTable, FlagTableError, human_readable_int, refused, to_argv

from tests.unit.planning import PROFILES, RENAMES, ROOT, TABLE, TABLES, flags_of, ids, plan

HEADER = "option\taliases\tdest\taction\ttype\tnargs\tconst\tdefault\trequired\tchoices\tline\n"


def found(flags):
    return [(finding.id, finding.where) for finding in TABLE.check(flags)]


def test_a_command_line_is_sorted_and_keys_may_be_written_either_way():
    flags = {"max_running_requests": 256, "disable-radix-cache": True, "page-size": None, "enable-metrics": False}
    flags["--page-size"] = 64
    argv = ["--disable-radix-cache", "--max-running-requests", "256", "--page-size", "64"]
    assert to_argv(flags) == to_argv(dict(reversed(list(flags.items())))) == argv


def test_values_of_every_kind_become_arguments():
    argv = to_argv({"a": [1, 2], "b": {"y": 1, "x": [2]}, "c": 0, "d": -1, "e": 0.5, "f": [{"k": 1}]})
    assert argv == "--a 1 2 --b {'x':[2],'y':1} --c 0 --d -1 --e 0.5 --f [{'k':1}]".replace("'", '"').split()


@pytest.mark.parametrize(
    "flags",
    [
        {"disable-radix-cache": True, "max-running-requests": 256, "chunked-prefill-size": -1},
        {"context-length": "25.6k", "max-total-tokens": "1Mi", "schedule-conservativeness": "0.35"},
        {"cuda-graph-bs": [1, 2, 4], "mm-process-config": {"image": {"max_pixels": 1}}},
        {"model-checksum": True, "tp-size": 1, "no-record-nolora-graph": True},
        ["--page-size=64", "--log-requests-level", "1"],
    ],
)
def test_what_the_engine_takes_passes(flags):
    assert TABLE.check(flags) == []


@pytest.mark.parametrize(
    ("flags", "id", "where"),
    [
        ({"mem-fraction": 0.9}, "flag-unknown", "--mem-fraction"),
        ({"attention-backend": "flashinfr"}, "flag-value", "--attention-backend"),
        ({"max-running-requests": "many"}, "flag-value", "--max-running-requests"),
        ({"max-running-requests": 1.5}, "flag-value", "--max-running-requests"),
        ({"max-total-tokens": "1.5Ki"}, "flag-value", "--max-total-tokens"),
        ({"mm-process-config": "{"}, "flag-value", "--mm-process-config"),
        ({"log-requests-level": 7}, "flag-value", "--log-requests-level"),
        ({"disable-radix-cache": "yes"}, "flag-value", "--disable-radix-cache"),
        ({"max-running-requests": True}, "flag-value", "--max-running-requests"),
        ({"max-running-requests": [1, 2]}, "flag-value", "--max-running-requests"),
        ({"cuda-graph-bs": True}, "flag-value", "--cuda-graph-bs"),
        ({"tp-size": 1, "tensor-parallel-size": 1}, "flag-twice", "--tp-size"),
        (["64", "--page-size", "64"], "flag-stray", "64"),
        (["-x"], "flag-unknown", "-x"),
        ({"hybrid-kvcache-ratio": True}, "flag-deprecated", "--hybrid-kvcache-ratio"),
    ],
)
def test_what_it_would_not_take_is_found(flags, id, where):
    assert found(flags) == [(id, where)]


def test_a_typo_and_a_prefix_get_a_suggestion():
    (typo,) = TABLE.check({"disable-radx-cache": True})
    assert typo.cure == "Did you mean --disable-radix-cache?"
    (prefix,) = TABLE.check({"mem-fraction": 0.9})
    assert prefix.cure == "Did you mean --mem-fraction-static?"
    (choice,) = TABLE.check({"attention-backend": "flashinfr"})
    assert "did you mean flashinfer?" in choice.seen


def test_a_deprecated_option_says_what_it_still_does():
    (idle,) = TABLE.check({"hybrid-kvcache-ratio": True})
    (working,) = NEWER.check({"disable-cuda-graph": True})
    assert "accepts it without effect" in idle.cure and "accepts it in place of a newer option" in working.cure


def test_canonical_names_resolve_aliases():
    assert TABLE.canonical("--tp_size") == TABLE.canonical("tensor_parallel_size") == "tensor-parallel-size"
    assert TABLE.canonical("no_such_flag") == "no-such-flag"


def test_a_secret_is_never_repeated():
    findings = [*TABLE.check({"api-key": ["hunter2", "hunter3"]}), *refused({"api-key": "hunter2"}, {})]
    assert len(findings) == 2
    assert not any("hunter" in finding.sentence() for finding in findings)


@pytest.mark.parametrize(
    ("text", "value"),
    [("256", 256), ("1k", 1000), ("25.6k", 25600), ("1Ki", 1024), ("2Mi", 2097152), (" 3G ", 3 * 10**9)],
)
def test_integers_for_people(text, value):
    assert human_readable_int(text) == value


@pytest.mark.parametrize("text", ["1K", "1.5Ki", "many", ""])
def test_integers_that_are_none(text):
    with pytest.raises(ValueError):
        human_readable_int(text)


@pytest.mark.parametrize(
    ("flags", "id"),
    [
        *[
            ({name: 1}, "flag-owned")
            for name in ("model-path", "host", "port", "nccl-port", "base-gpu-id", "numa-node")
        ],
        *[({name: "x"}, "flag-owned") for name in ("api-key", "admin-api-key", "config")],
        *[({f"{kind}-parallel-size": 2}, "flag-parallel") for kind in ("tensor", "pipeline", "data", "expert")],
        ({"base-gpu-id": 0}, "flag-owned"),
        ({"log-requests": True}, "flag-prompts"),
        ({"log-requests": True, "log-requests-level": 3}, "flag-prompts"),
    ],
)
def test_what_the_project_owns_or_forbids_is_refused(flags, id):
    assert [(finding.id, finding.level) for finding in refused(flags, {})] == [(id, "error")]


@pytest.mark.parametrize(
    "flags",
    [
        {"tensor-parallel-size": 1},
        {"log-requests": True, "log-requests-level": 1},
        {"log-requests": False, "log-requests-level": 3},
        {"port": None},
    ],
)
def test_what_harms_nobody_is_not_refused(flags):
    assert refused(flags, {}) == []


def test_environment_of_the_unit_is_refused():
    (finding,) = refused({}, {"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO", "SGLANG_MAMBA_CONV_DTYPE": None})
    assert (finding.id, finding.where) == ("env-owned", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("name", ["A B", "1ST", "A;reboot", "", "Ü"])
def test_a_name_that_a_shell_cannot_export_is_refused(name):
    (finding,) = refused({}, {name: "x"})
    assert (finding.id, finding.where) == ("env-name", name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("option\taliases\n--x\t\n", "line 2"),
        (HEADER + "--x\t\tx\tstore\tcomplex\t\t\tnull\t\t\t1\n", "complex"),
        (HEADER + "--x\t\tx\tstore\tint\t9\t\tnull\t\t\t1\n", "nargs '9'"),
        (HEADER + "--x\t\tx\tstore\tint\t\t\tnull\t\t[1,\t1\n", "line 2"),
    ],
)
def test_a_damaged_table_says_where(text, words):
    with pytest.raises(FlagTableError, match=words):
        FlagTable.parse(text, "9.9")


def test_a_missing_table_names_engine_and_file(tmp_path):
    with pytest.raises(FlagTableError, match=r"no flag table of engine 9\.9 at .*absent"):
        FlagTable.read(tmp_path / "absent.tsv", "9.9")


NEWER = TABLES["0.5.23"]
RENAMED = sorted(RENAMES["renamed"].items())


@pytest.mark.parametrize("path", sorted((ROOT / "stacks").glob("*/stack.yml")), ids=lambda path: path.parent.name)
def test_every_stack_has_the_flag_table_of_its_engine(path):
    meta = yaml.safe_load(path.read_text())
    assert meta["flags"] == f"sglang-{meta['engine']}" and meta["engine"] in TABLES


@pytest.mark.parametrize(("earlier", "later"), RENAMED)
def test_a_renamed_option_is_written_as_each_version_calls_it(earlier, later):
    value = {
        "mamba-scheduler-strategy": "no_buffer",
        "nsa-decode-backend": "tilelang",
        "nsa-prefill-backend": "tilelang",
    }
    switch = earlier in ("disable-piecewise-cuda-graph", "stream-output")
    given = value.get(earlier, True if switch else 64)
    for name in (earlier, later):
        assert NEWER.spelled({name: given}) == {later: given}
        assert NEWER.check(NEWER.spelled({name: given})) == []
        older = TABLE.spelled({name: given})
        assert [finding.level for finding in TABLE.check(older) if finding.level == "error"] == []
        assert TABLE.canonical(name) == NEWER.canonical(name) == earlier


def test_a_command_line_in_another_versions_words_is_refused_with_this_versions():
    (finding,) = NEWER.check(["--cuda-graph-max-bs", "64"])
    assert (finding.id, finding.level) == ("flag-unknown", "error")
    assert finding.cure == "Write --cuda-graph-max-bs-decode, as this version calls it."
    (back,) = TABLE.check(["--mamba-radix-cache-strategy", "auto"])
    assert back.cure == "Write --mamba-scheduler-strategy, as this version calls it."


@pytest.mark.parametrize("name", sorted(RENAMES["removed"]))
def test_a_removed_option_says_what_to_do_instead(name):
    assert option_known(TABLE, name), "it was an option of 0.5.11"
    (finding,) = [found for found in NEWER.check({name: True}) if found.id == "flag-removed"]
    assert finding.level == "error" and finding.cure == RENAMES["removed"][name]


def option_known(table, name):
    return not any(finding.id in ("flag-unknown", "flag-removed") for finding in table.check({name: True}))


def test_both_names_of_one_option_are_not_merged_in_silence():
    both = {"cuda-graph-max-bs": 32, "cuda-graph-max-bs-decode": 64}
    assert "flag-unknown" in [finding.id for finding in NEWER.check(NEWER.spelled(both))]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_is_written_in_the_words_of_the_newer_engine(profile):
    # With 0.5.11's formulas: what is looked at here are the names.
    planned = plan(profile, flag_table=NEWER, overrides={"mamba_scheduler_strategy": None, "cuda_graph_bs": [1, 2]})
    assert ids(planned) == []
    flags = flags_of(planned)
    assert "cuda-graph-max-bs-decode" in flags and flags["cuda-graph-bs-decode"] == "1"
    assert not {"cuda-graph-max-bs", "cuda-graph-bs", "mamba-scheduler-strategy"} & flags.keys()
    assert NEWER.check(planned["argv"]) == []


def test_a_profile_that_cannot_be_kept_is_refused_in_words():
    planned = plan("batch", flag_table=NEWER, overrides={"enforce-piecewise-cuda-graph": True})
    assert ids(planned) == ["flag-removed"] and planned["argv"] == []
