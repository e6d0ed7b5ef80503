"""Containers' configurations as they are found: from a file, with snapshots, from the API, with nothing in them."""

import pytest
from sglang_pve import pve_config

FILE = """\
# made by hand\\n#dev9%3A /dev/nvidia9
#lxc.cgroup2.devices.allow: c 999:* rwm
arch: amd64
cores: 32
dev0: /dev/nvidia0,mode=0666
dev10: path=/dev/nvidiactl,gid=44,uid=1000
dev2: /dev/nvidia-uvm
features: keyctl=1,nesting=1
hookscript: local:snippets/up.sh
hostname: ct200
lock: backup
memory: 262144
mp0: /tank/models,mp=/models,ro=1,shared=1
mp1: local-zfs:subvol-200-disk-1,mp=/scratch,backup=0,size=50G
mp2: /dev/sdb1,mp=/data
net0: name=eth0,bridge=vmbr0,ip=dhcp,type=veth
rootfs: local-zfs:subvol-200-disk-0,size=200G
swap: 0
tags: sglang;gpu,big
unprivileged: 1
some_new_key3: of a later version
not a setting at all
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow = c 511:0 rw
lxc.cgroup2.devices.allow: b 8:1
lxc.cgroup2.devices.allow: c nvidia rwm
lxc.cgroup2.cpuset.cpus: 0-7
lxc.cgroup2.cpuset.cpus: 0-15
lxc.cgroup2.cpuset.mems: 0
lxc.cgroup.cpuset.cpus: 0-3
lxc.cgroup.devices.allow: c 999:* rwm
lxc.idmap: u 0  100000 65536
lxc.idmap: g 0 100000 65536
lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-caps\tdev/nvidia-caps none bind,optional,create=dir 0 0
lxc.mount.entry = /srv/my\\040models /models2 none rbind,ro 0 0
lxc.mount.entry: tmpfs tmp tmpfs size=1G
lxc.mount.entry: /dev/nvidia2 dev/nvidia2
lxc.mount.entry: broken

[before-upgrade]
#before the upgrade
arch: amd64
cores: 4
memory: 512
dev0: /dev/nvidia7
snaptime: 1764547200
lxc.idmap: u 0 300000 65536

[second]
memory: 1024
parent: before-upgrade
"""
SETTINGS = {
    "unprivileged": True,
    "memory_mib": 262144,
    "swap_mib": 0,
    "cores": 32,
    "cpuset": "0-15",
    "memory_nodes": "0",
    "nesting": True,
    "lock": "backup",
    "hookscript": "local:snippets/up.sh",
    "idmap": ["u 0 100000 65536", "g 0 100000 65536"],
    "devices": [
        {"path": "/dev/nvidia0", "uid": 0, "gid": 0, "mode": "0666"},
        {"path": "/dev/nvidia-uvm", "uid": 0, "gid": 0, "mode": None},
        {"path": "/dev/nvidiactl", "uid": 1000, "gid": 44, "mode": None},
    ],
    "allow": [
        {"type": "c", "major": 195, "minor": "*", "access": "rwm"},
        {"type": "c", "major": 511, "minor": 0, "access": "rw"},
        {"type": "b", "major": 8, "minor": 1, "access": "rwm"},
    ],
    "snapshots": ["before-upgrade", "second"],
    "tags": ["sglang", "gpu", "big"],
}
MOUNTS = [
    ("local-zfs:subvol-200-disk-0", "/", "size=200G", "volume"),
    ("/tank/models", "/models", "ro=1,shared=1", "bind"),
    ("local-zfs:subvol-200-disk-1", "/scratch", "backup=0,size=50G", "volume"),
    ("/dev/sdb1", "/data", "", "device"),
    ("/dev/nvidia1", "/dev/nvidia1", "bind,optional,create=file", "device"),
    ("/dev/nvidia-caps", "/dev/nvidia-caps", "bind,optional,create=dir", "device"),
    ("/srv/my models", "/models2", "rbind,ro", "bind"),
    ("tmpfs", "/tmp", "size=1G", "filesystem"),
    ("/dev/nvidia2", "/dev/nvidia2", "", "device"),
]


def split(found):
    return {name: value for name, value in found.items() if name != "mounts"}, [
        tuple(mount[name] for name in ("source", "target", "options", "kind")) for mount in found["mounts"]
    ]


def as_api(text):
    """The same configuration as the API gives it: numbers as numbers, raw keys in a list of pairs."""
    config = pve_config.parse(text)
    plain = {name: int(value) if value.isdigit() else value for name, value in config.settings if "lxc." not in name}
    answer = {
        **plain,
        "lxc": [list(pair) for pair in config.raw()],
        "digest": "ab",
        "description": "dev9: /dev/nvidia9\n",
    }
    return answer, [{"name": "before-upgrade"}, {"name": "second"}, {"name": "current", "description": "You are here!"}]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_file_with_everything_in_it(ending):
    found = pve_config.facts(pve_config.parse("\ufeff" + FILE.replace("\n", ending)))
    assert split(found) == (SETTINGS, MOUNTS)


def test_the_api_says_the_same():
    assert split(pve_config.facts(pve_config.parse_api(*as_api(FILE)))) == (SETTINGS, MOUNTS)


@pytest.mark.parametrize("config", [pve_config.parse(""), pve_config.parse("# note\r\n\r\n"), pve_config.parse_api({})])
def test_an_empty_configuration_has_the_defaults(config):
    found = pve_config.facts(config)
    assert (found["memory_mib"], found["swap_mib"], found["cores"], found["unprivileged"]) == (512, 512, None, False)
    assert [name for name, value in found.items() if value == []] == [
        *("idmap", "devices", "allow", "mounts", "snapshots", "tags")
    ]


def test_the_last_of_two_values_counts_and_a_snapshot_changes_nothing():
    config = pve_config.parse("memory: 1\nmemory: 2\n[s]\nmemory: 3\n")
    assert pve_config.facts(config)["memory_mib"] == 2


@pytest.mark.parametrize("line", ["a", "a *:* rwm", "c *:* rwm"])
def test_everything_allowed(line):
    found = pve_config.allowed(line)
    assert found is not None and found["major"] == "*"


def test_cards_are_those_of_both_styles():
    assert pve_config.cards(pve_config.parse(FILE)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "started", "pending"),
    [
        ("memory: 1\n[pve:pending]\nmemory: 2\n", None, True),
        ("memory: 1\n", None, None),
        ("lxc.idmap: u 0 1 2\n", "lxc.arch = amd64\nlxc.idmap = u 0 1 2\n", False),
        ("lxc.cgroup2.devices.allow: c 511:* rwm\n", "lxc.cgroup2.devices.allow = c 510:* rwm\n", True),
        ("memory: 1\n[snap]\nlxc.idmap: u 0 1 2\n", "lxc.arch = amd64\n", False),
    ],
)
def test_what_waits_for_a_restart(text, started, pending):
    config = pve_config.parse(text)
    assert pve_config.is_pending(config, started) is pending
    assert config.snapshots == (["snap"] if "[snap]" in text else [])


@pytest.mark.parametrize("answer", [[], "no", {"lxc": {"a": 1}}, {"lxc": [["one"]]}])
def test_what_is_no_answer_is_refused(answer):
    with pytest.raises(pve_config.ConfigError, match="expected a mapping"):
        pve_config.parse_api(answer)
