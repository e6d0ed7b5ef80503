"""Which accounts may run servers, and what logind does to the others' memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang_pve import account

ACCOUNTS = {"uids": {"root": 0, "sglang": 998, "alice": 1000}, "remove_ipc": True}


@pytest.mark.parametrize(
    ("files", "removed"),
    [
        ({}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n RemoveIPC = no \n"}, False),
        ({"etc/systemd/logind.conf": "RemoveIPC=no\nRemoveIPC=\n"}, True),
        ({"usr/lib/systemd/logind.conf": "RemoveIPC=off\n"}, False),
        ({"usr/lib/systemd/logind.conf": "RemoveIPC=no\n", "etc/systemd/logind.conf": "[Login]\n"}, True),
        ({"usr/lib/systemd/logind.conf": "RemoveIPC=no\n", "etc/systemd/logind.conf.d/a.conf": "RemoveIPC=yes"}, True),
        ({"usr/lib/systemd/logind.conf.d/a.conf": "RemoveIPC=no", "etc/systemd/logind.conf.d/a.conf": ""}, True),
        (
            {"usr/lib/systemd/logind.conf.d/b.conf": "RemoveIPC=no", "etc/systemd/logind.conf.d/a.conf": "RemoveIPC=1"},
            False,
        ),
    ],
)
def test_what_logind_is_told(tmp_path: Path, files: dict[str, str], removed: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert account.remove_ipc(tmp_path) is removed


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sglang", {}, None),
        ("new", {}, None),
        ("alice", {"remove_ipc": False}, None),
        ("alice", {}, "RemoveIPC"),
        ("root", {}, "never run as root"),
    ],
)
def test_who_may_run_servers(name: str, change: dict[str, Any], words: str | None) -> None:
    found = account.judge(name, {**ACCOUNTS, **change})
    if words is None:
        assert found is None
    else:
        assert found is not None and found.level == "error" and words in found.sentence() and name in found.sentence()


def test_this_machine_has_a_root() -> None:
    assert account.read()["uids"]["root"] == 0
