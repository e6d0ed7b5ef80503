"""Retention on real directories: what stays, what goes, and an interruption in between."""

import json
import subprocess
import sys

import pytest
from sglang_pve import history, release, retention

CARD = {"profile": "batch", "card": "c", "argv": [], "env": {}, "pools": {}}
STACKS = ["a" * 12, "b" * 12, "c" * 12]


class Container:
    """/opt/sglang, the cache and the history of one container with a single server."""

    def __init__(self, folder):
        self.root, self.cache, self.log = folder / "opt", folder / "cache", folder / "history.jsonl"
        self.ids = []

    def deploy(self, stack, marker=True):
        """A verified release of its own on this stack, linked by gpu0."""
        content = release.manifest(
            {"id": stack, "name": "s", "engine": "1"}, {"path": "/m", "name": f"m{len(self.ids)}"}, CARD
        )
        files = {"run": "", "ready": "", "unit.conf": ""}
        release.write(self.root / "releases", content, files)
        self.ids.append(release.release_id(content, files))
        self.stack(stack, marker)
        link = self.root / "servers/gpu0/release"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../releases/{self.ids[-1]}")
        history.append(self.log, [{"event": "verified", "kind": "deploy", "servers": {"gpu0": self.ids[-1]}}])
        return self.ids[-1]

    def stack(self, name, marker=True):
        for place in (self.root / "stacks" / name / "venv", self.cache / name / "sm120"):
            place.mkdir(parents=True, exist_ok=True)
            (place / "file").write_bytes(bytes(10000))
        if marker:
            (self.root / "stacks" / name / "stack.json").write_text("{}")

    def choose(self, count, **more):
        items, doubts = retention.choose(self.root, self.cache, history.read(self.log)[0], count, **more)
        return items, doubts

    def goes(self, count, **more):
        return sorted((item.kind, item.path.name) for item in self.choose(count, **more)[0])


@pytest.fixture
def container(tmp_path):
    return Container(tmp_path)


def test_the_present_one_the_one_before_and_so_many_more_stay(container):
    for _ in range(6):
        container.deploy(STACKS[0])
    gone = container.ids[:3]
    assert container.goes(1) == sorted(("release", name) for name in gone)
    assert container.goes(0) == sorted(("release", name) for name in container.ids[:4])
    assert container.goes(4) == []


def test_a_stack_goes_with_its_last_release_and_takes_its_kernels(container):
    for stack in STACKS:
        container.deploy(stack)
    items, doubts = container.choose(0)
    assert sorted((item.kind, item.path.name) for item in items) == [
        ("kernels", STACKS[0]),
        ("release", container.ids[0]),
        ("stack", STACKS[0]),
    ]
    assert doubts == [] and all(item.bytes >= 10000 for item in items if item.kind != "release")
    retention.remove(items)
    assert container.goes(0) == []
    assert sorted(path.name for path in (container.root / "stacks").iterdir()) == STACKS[1:]
    assert (
        history.rollback_target(history.read(container.log)[0], {"gpu0": container.ids[2]})["gpu0"] == container.ids[1]
    )


def test_what_a_rollback_left_behind_stays_linked_or_goes_after_the_next_deployment(container):
    first, second = container.deploy(STACKS[0]), container.deploy(STACKS[1])
    history.append(container.log, [{"event": "verified", "kind": "rollback", "servers": {"gpu0": first}}])
    assert container.goes(3) == [], "gpu0's link still names the second"
    link = container.root / "servers/gpu0/release"
    link.unlink()
    link.symlink_to(f"../../releases/{first}")
    assert ("release", second) in container.goes(3)


def test_an_abandoned_install_goes_but_not_the_one_of_this_deployment(container):
    container.deploy(STACKS[0])
    container.stack(STACKS[1], marker=False)
    assert ("unfinished stack", STACKS[1]) in container.goes(3)
    assert container.goes(3, keep_stacks=[STACKS[1]]) == []


def test_what_a_process_runs_from_stays(container):
    container.deploy(STACKS[0])
    container.stack(STACKS[1])
    old = container.ids[0]
    for _ in range(3):
        container.deploy(STACKS[2])
    python = container.root / "stacks" / STACKS[1] / "venv/python"
    python.symlink_to(sys.executable)
    command = [str(python), "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, stdin=-1, stdout=-1, env={"SGLANG_PVE_RELEASE": old, "PYTHONHOME": sys.base_prefix}
    ) as process:
        process.stdout.readline()
        names = [name for _, name in container.goes(0)]
        process.communicate(b"\n")
    assert STACKS[1] not in names and old not in names
    assert {STACKS[1], old} <= {name for _, name in container.goes(0)}


def test_a_kept_release_that_cannot_be_read_keeps_every_stack(container):
    container.deploy(STACKS[0])
    container.deploy(STACKS[1])
    container.stack(STACKS[2])
    manifest = container.root / "releases" / container.ids[-1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"batch"', '"other"'))
    items, doubts = container.choose(0)
    assert items == [] and "altered on disk" in doubts[0]


def test_names_that_are_not_ours_are_not_looked_at(container, tmp_path):
    container.deploy(STACKS[0])
    for place in (container.root / "stacks/mine", container.root / "releases/notes", container.cache / "other"):
        place.mkdir(parents=True)
    (container.root / "stacks" / ("d" * 12)).symlink_to(tmp_path)
    assert container.goes(0) == []


def test_an_interrupted_removal_leaves_nothing_that_looks_whole(container, monkeypatch):
    container.deploy(STACKS[0])
    container.deploy(STACKS[1])
    container.deploy(STACKS[1])
    items, _ = container.choose(0)
    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", lambda path: None)
        retention.remove(items)
    assert not (container.root / "stacks" / STACKS[0] / "stack.json").exists()
    assert container.ids[0] not in release.read_all(container.root / "releases")
    assert release.remove_unfinished(container.root / "releases")
    assert ("unfinished stack", STACKS[0]) in container.goes(0)


def test_a_history_of_a_newer_version_is_refused(container):
    container.deploy(STACKS[0])
    with container.log.open("a") as log:
        log.write(json.dumps({"schema": 2, "event": "verified"}) + "\n")
    with pytest.raises(history.HistoryError, match="schema 2, this version of sglang-pve reads 1"):
        history.read(container.log)
