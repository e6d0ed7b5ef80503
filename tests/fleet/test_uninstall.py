"""What a deployment frees, and that an uninstall takes all of ours and nothing else."""

from __future__ import annotations

from fleet_kit import FAULTS, NAMES, Fleet, changes, said

# Everything that a deployment could have made, by name; the lab's own files and the kernel's are none of it.
TRACES = (
    "find / -xdev -name '*sglang*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/models/*'"
    f" -not -path '{FAULTS.rsplit('/', 1)[0]}*' -not -path '/var/log/*' -not -path '/opt/sglang-lab*'"
)


def releases_on_disk(fleet: Fleet) -> set[str]:
    return set(fleet.inside("ls /opt/sglang/releases").split())


def test_old_releases_go_and_what_a_rollback_needs_stays(fleet: Fleet) -> None:
    """Each deployment makes a release of its own; with one kept besides, the newest three stay."""
    made = []
    for index in range(4):
        done = fleet.good_run(sglang_keep_releases=1, sglang_environment={"SGLANG_LAB_ROUND": str(index)})
        made.append(fleet.releases()["gpu0"])
    assert "GiB: /opt/sglang/releases/" in said(done)
    assert releases_on_disk(fleet) == set(made[1:])
    checked = fleet.run("site", "--check", sglang_keep_releases=0, sglang_environment={"SGLANG_LAB_ROUND": "3"})
    assert made[1] in checked.stdout and releases_on_disk(fleet) == set(made[1:])
    assert fleet.run("rollback").returncode == 0
    assert set(fleet.releases().values()) == {made[2]}
    fleet.good_run()


def test_without_confirmation_it_only_shows(fleet: Fleet) -> None:
    before = fleet.pids()
    done = fleet.run("uninstall")
    assert done.returncode == 0 and changes(done) == 0
    for text in ("/opt/sglang/stacks/", "Servers that stop: gpu0, gpu1, gpu2", "Nothing was changed"):
        assert text in said(done), done.stdout
    assert fleet.pids() == before


def test_part_of_a_container_is_refused(fleet: Fleet) -> None:
    done = fleet.run("uninstall", "--limit", fleet.host(1), sglang_uninstall_confirm=True)
    assert done.returncode == 2 and "takes whole containers" in said(done)
    assert fleet.healthy(1)


def test_it_takes_all_of_ours_and_names_what_is_not(fleet: Fleet) -> None:
    fleet.inside("touch /opt/sglang/notes.txt /var/lib/sglang/mine; echo x >/etc/sglang/other.conf")
    done = fleet.run("uninstall", sglang_uninstall_confirm=True)
    assert done.returncode == 0, done.stdout
    for path in ("/opt/sglang/notes.txt", "/var/lib/sglang/mine", "/etc/sglang/other.conf"):
        assert path in said(done)
    assert fleet.inside("ls /opt/sglang /var/lib/sglang /etc/sglang").split().count("notes.txt") == 1
    fleet.inside("rm /opt/sglang/notes.txt /var/lib/sglang/mine; rm -r /etc/sglang")
    # The tests' own disks are mounted there.
    assert sorted(fleet.inside(TRACES).split()) == ["/opt/sglang", "/var/lib/sglang"]
    assert fleet.inside("ls -A /opt/sglang; ls -A /var/lib/sglang") == ""
    assert fleet.attempt("id sglang").returncode != 0
    assert fleet.attempt("systemctl list-units --all 'sglang*' --no-legend --plain | grep -v '^$'").stdout == ""
    again = fleet.run("uninstall", sglang_uninstall_confirm=True)
    assert again.returncode == 0 and changes(again) == 0
    assert changes(fleet.good_run()) > 0
    assert sorted(fleet.releases()) == NAMES
