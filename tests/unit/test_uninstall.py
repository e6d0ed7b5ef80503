"""What uninstall calls ours, and what it leaves, on real trees."""

import json
import os
from dataclasses import replace
from pathlib import Path

import attach_kit as kit
import pytest
from sglang_pve import attach, uninstall

OURS = [
    "opt/sglang/releases/0123456789ab/manifest.json",
    "opt/sglang/releases/0123456789ab/run",
    "opt/sglang/releases/.0123456789ab.x1/run",
    "opt/sglang/servers/gpu0/server.env",
    "opt/sglang/stacks/ba9876543210/stack.json",
    "opt/sglang/stacks/ba9876543210/venv/bin/python",
    "opt/sglang/stacks/.lock",
    "opt/sglang/tools/uv-0.1/uv",
    "opt/sglang/libexec/sglang_pve/staging.py",
    "opt/sglang/wheelhouse/a-1-py3-none-any.whl",
    "var/lib/sglang/history.jsonl",
    "var/lib/sglang/gpu0/core",
    "var/lib/sglang/lent/gpu0",
    "var/cache/sglang/ba9876543210/sm120/kernel.so",
    "etc/sglang/models.json",
]
FOREIGN = [
    "opt/sglang/notes.txt",
    "opt/sglang/releases/0123456789ab/mine.sh",
    "opt/sglang/stacks/mine/file",
    "opt/sglang/wheelhouse/README",
    "var/lib/sglang/backup/a.tar",
    "etc/sglang/other.conf",
]
MANAGED = [
    "etc/systemd/system/sglang.target",
    "etc/systemd/system/sglang@.service",
    "etc/systemd/system/sglang@0.service.d/release.conf",
    "etc/systemd/journald.conf.d/sglang.conf",
]


def fill(prefix, names, text=""):
    for name in names:
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(text)


@pytest.fixture
def places(tmp_path, monkeypatch):
    fill(tmp_path, OURS)
    fill(tmp_path, MANAGED, "# Managed by sglang-pve\n")
    (tmp_path / "opt/sglang/servers/gpu0/release").symlink_to("../../releases/0123456789ab")
    monkeypatch.setattr(uninstall, "systemctl", lambda *words: "")
    monkeypatch.setattr(uninstall, "remove", lambda item: None)
    return uninstall.Places(prefix=tmp_path, user="nobody-of-that-name", wheelhouse=Path("/opt/sglang/wheelhouse"))


def files(prefix):
    return sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_symlink() or path.is_file())


def test_everything_of_ours_goes_and_a_second_run_finds_nothing(places):
    listing = uninstall.look(places)
    assert listing.servers == [0] and listing.units == ["sglang.target"] and listing.foreign == []
    assert uninstall.carry_out(places, listing) == []
    assert files(places.prefix) == []
    assert not (places.prefix / "opt/sglang").exists() and not (places.prefix / "var/lib/sglang").exists()
    assert uninstall.look(places).empty


def test_foreign_files_are_named_and_stay_with_their_directories(places):
    fill(places.prefix, FOREIGN)
    listing = uninstall.look(places)
    assert [str(path.relative_to(places.prefix)) for path in listing.foreign] == FOREIGN
    assert len(uninstall.carry_out(places, listing)) == len(FOREIGN)
    assert files(places.prefix) == sorted(FOREIGN)


def test_a_unit_file_that_somebody_else_wrote_stays(places):
    unit = places.prefix / "etc/systemd/system/sglang.target"
    unit.write_text("[Unit]\nDescription=mine\n")
    listing = uninstall.look(places)
    assert unit not in listing.ours and listing.units == []


def test_links_are_removed_and_never_followed(places, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_text("x")
    (places.root / "stacks/aaaaaaaaaaaa").symlink_to(elsewhere)
    (places.root / "stacks/ba9876543210/venv/models").symlink_to(elsewhere)
    uninstall.carry_out(places, uninstall.look(places))
    assert (elsewhere / "kept").exists()
    assert files(places.prefix) == ["opt/sglang/stacks/aaaaaaaaaaaa"]


def test_an_interrupted_run_goes_on(places, monkeypatch):
    listing, rmtree = uninstall.look(places), uninstall.shutil.rmtree

    def fails(path):
        if path.name == "ba9876543210":
            raise OSError("interrupted")
        rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr(uninstall.shutil, "rmtree", fails)
        with pytest.raises(OSError, match="interrupted"):
            uninstall.carry_out(places, listing)
    uninstall.carry_out(places, uninstall.look(places))
    assert files(places.prefix) == []


def test_an_account_that_has_another_home_is_not_ours():
    assert uninstall.look(uninstall.Places(user="root")).account == ""


@pytest.fixture
def models(tmp_path_factory):
    """A whole model, a checkpoint that lost its head, and that head attached, in one directory."""
    place = tmp_path_factory.mktemp("models é")
    kit.lab.make(place / "official")
    kit.lab.make(place / "lost", with_draft=False)
    attach.attach(attach.plan(place / "lost", [place / "official"]), place / "lost-mtp", say=lambda line: None)
    return place


def with_models(places, *models):
    return replace(places, models=models, attached=True)


def test_a_directory_that_a_head_was_attached_in_goes_and_its_checkpoint_stays(places, models):
    places, before = with_models(places, models / "lost-mtp", models / "official"), kit.snapshot(models / "lost")
    listing = uninstall.look(places)
    assert listing.as_dict()["attached"] == [{"path": str(models / "lost-mtp"), "lost_sources": [], "goes": True}]
    assert uninstall.carry_out(places, listing) == []
    assert sorted(path.name for path in models.iterdir()) == ["lost", "official"]
    assert kit.snapshot(models / "lost") == before
    assert uninstall.look(places).empty


def test_an_attached_head_that_only_the_next_boots_staging_names_goes(places, models):
    named = {"models": [{"source": str(models / "lost-mtp"), "target": str(models / "no copy")}]}
    (places.prefix / "etc/sglang/models.json").write_text(json.dumps(named))
    uninstall.carry_out(places, uninstall.look(with_models(places)))
    assert not (models / "lost-mtp").exists()


def test_an_attached_head_that_others_may_serve_stays_unless_it_is_asked_for(places, models):
    places = replace(with_models(places, models / "lost-mtp"), attached=False)
    before = kit.snapshot(models / "lost-mtp")
    listing = uninstall.look(places)
    assert listing.as_dict()["attached"] == [{"path": str(models / "lost-mtp"), "lost_sources": [], "goes": False}]
    uninstall.carry_out(places, listing)
    assert kit.snapshot(models / "lost-mtp") == before
    assert uninstall.look(places).empty


def test_a_head_whose_source_is_gone_is_told_and_a_foreign_file_beside_it_stays(places, models):
    (models / "official").rename(models / "elsewhere")
    (models / "lost-mtp/notes.txt").write_text("mine")
    places = with_models(places, models / "lost-mtp")
    listing = uninstall.look(places)
    assert listing.as_dict()["attached"][0]["lost_sources"] == [str(models / "official")]
    assert uninstall.carry_out(places, listing) == [str(models / "lost-mtp/notes.txt")]
    assert sorted(path.name for path in (models / "lost-mtp").iterdir()) == [attach.MARKER, "notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="it gives a directory to another user")
def test_a_place_that_belongs_to_somebody_else_is_named_and_all_else_goes(places, models):
    os.chown(models, 54321, 54321)
    places = with_models(places, models / "lost-mtp")
    (left,) = uninstall.carry_out(places, uninstall.look(places))
    assert left.startswith(f"{models / 'lost-mtp'}: ") and "54321" in left
    assert files(places.prefix) == []
