"""The lines that pass cards: written once, in the right place, and nothing else is touched."""

import difflib

import pytest
from sglang_pve import passthrough, pve_config

PATHS = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
NODES = [
    {"path": path, "major": 511 if "uvm" in path else 195, "minor": 0, "uid": 0, "gid": 0, "mode": "0666"}
    for path in [*reversed(PATHS), "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-modeset"]
]
BEFORE = """\
# a note
arch: amd64
dev1: /dev/ttyUSB0
dev3: /dev/nvidia1,mode=0600,gid=5
memory: 1024
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /srv srv none bind

[snap]
dev0: /dev/nvidia0
memory: 512
"""


def edited(text, style="devN", cards=()):
    return passthrough.edit(text, passthrough.choose(NODES, list(cards)), style, "0666")


def changes(before, after):
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_devn_entries_take_free_numbers_and_replace_raw_lines():
    after = edited(BEFORE)
    assert sorted(changes(BEFORE, after)) == sorted(
        [
            "- dev3: /dev/nvidia1,mode=0600,gid=5",
            "+ dev3: /dev/nvidia1,gid=5,mode=0666",
            "- lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file",
            "+ dev0: /dev/nvidia0,mode=0666",
            "+ dev2: /dev/nvidia10,mode=0666",
            "+ dev4: /dev/nvidia-uvm,mode=0666",
            "+ dev5: /dev/nvidia-uvm-tools,mode=0666",
            "+ dev6: /dev/nvidiactl,mode=0666",
        ]
    )
    assert after.endswith("[snap]\ndev0: /dev/nvidia0\nmemory: 512\n")
    assert edited(after) == after


def test_raw_lines_name_the_present_numbers_and_replace_devn_entries():
    after = edited(BEFORE, "raw", [1])
    assert sorted(changes(BEFORE, after)) == sorted(
        [
            "- dev3: /dev/nvidia1,mode=0600,gid=5",
            "+ lxc.cgroup2.devices.allow: c 195:* rwm",
            "+ lxc.cgroup2.devices.allow: c 511:* rwm",
            *(
                f"+ lxc.mount.entry: {path} {path[1:]} none bind,optional,create=file"
                for path in ("/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
            ),
        ]
    )
    assert edited(after, "raw", [1]) == after
    there_and_back = edited(edited(after, "devN", [1]), "raw", [1])
    assert sorted(there_and_back.splitlines()) == sorted(after.splitlines())


@pytest.mark.parametrize("style", passthrough.STYLES)
def test_an_empty_file_and_one_of_windows(style):
    after = edited("", style)
    assert pve_config.cards(pve_config.parse(after)) == [0, 1, 10]
    windows = BEFORE.replace("\n", "\r\n")
    assert edited(windows, style) == edited(BEFORE, style).replace("\n", "\r\n")
    assert edited(after, style) == after


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lock: snapshot\n", "has the lock snapshot; expected none"),
        ("memory: 1\n[pve:pending]\ndev0: /dev/nvidia0\n", "changes of dev0 wait for a restart"),
        ("".join(f"dev{number}: /dev/tty{number}\n" for number in range(256)), "no devN number"),
    ],
)
def test_a_file_that_must_not_be_edited(text, words):
    with pytest.raises(passthrough.PassthroughError, match=words):
        edited(text)


@pytest.mark.parametrize(
    ("nodes", "cards", "words"),
    [(NODES, [7], "no /dev/nvidia7, but"), ([], [], "no /dev/nvidiactl, /dev/nvidia-uvm, but no device of the driver")],
)
def test_a_node_without_the_devices(nodes, cards, words):
    with pytest.raises(passthrough.PassthroughError, match=words):
        passthrough.choose(nodes, cards)


def test_what_a_running_container_lacks():
    want = passthrough.choose(NODES, [0])
    inside = [{**node, "major": 510} if "uvm" in node["path"] else node for node in want]
    assert passthrough.lacking(want, want, "0666") == []
    assert passthrough.lacking(want, inside, None) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert passthrough.lacking(want, [{**node, "mode": "0600"} for node in want], "0666") == [x["path"] for x in want]
    assert passthrough.lacking(want, [], "0666") == [node["path"] for node in want]
