# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what is wrong with servers, and pack what somebody else needs to look at it."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR
from ansible.utils.display import Display

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import publish, signatures
from sglang_pve import journal, redact, report

display = Display()


class ActionModule(ActionBase):
    """Arguments as library/sglang_diagnose_report.py documents them."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = self._task.args
        known, servers = signatures(), {}
        for container in args["containers"]:
            for name, seen in container["read"]["servers"].items():
                host = container["hosts"].get(name, f"{container['name']}-{name}")
                servers[host] = self._judged(seen, container["read"]["kernel"], known)
        answer = {"verdict": "well" if all(one["well"] for one in servers.values()) else "ill", "servers": servers}
        publish(answer, [self._text(host, one) for host, one in servers.items()], args.get("json"))
        if args.get("bundle"):
            pack(Path(args["bundle"]), args["containers"], answer)
            display.display(f"written: {args['bundle']}", stderr=True)
        return {"changed": False, **answer}

    @staticmethod
    def _judged(seen, kernel, known):
        """A server that answers is well, also when an earlier run of it failed: that is told beside it."""
        runs = seen["runs"] or [[]]
        ended = seen["unit"] if seen["unit"].get("active") != "active" else {}
        found = next(filter(None, (journal.diagnose(run, known, ended, kernel, seen["fits"]) for run in runs)), None)
        well = bool(seen["healthy"] or seen["lent"] or (seen["unit"].get("active") in ("inactive", None) and not found))
        return {"well": well, "state": seen["unit"].get("active"), "release": seen["release"], "diagnosis": found}

    @staticmethod
    def _text(host, one):
        word = "well" if one["well"] else "ill"
        head = f"{host}: {report.paint(word, 'ok' if one['well'] else 'error', ANSIBLE_COLOR)} ({one['state']})"
        if not one["diagnosis"]:
            return head if one["well"] else f"{head}\n  its journal says nothing that is known; see logs.yml"
        found = one["diagnosis"]
        lines = [head + (", after an earlier failure:" if one["well"] else "")]
        lines += [f"  {key:<9} {found[key]}" for key in ("cause", "evidence", "cure", "source")]
        lost = "  the journal lost lines (rate limit), so this may not be the first failure"
        return "\n".join([*lines, *([lost] if found["suppressed"] else [])])


def pack(target, containers, answer):
    """Write the bundle, for its owner alone."""
    with target.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as bundle:
        target.chmod(0o600)
        add(bundle, "diagnosis.json", json.dumps(answer, indent=1))
        for container in containers:
            base = container["name"]
            add(bundle, f"{base}/state.json", redact.text(json.dumps(container["state"], indent=1, sort_keys=True)))
            for name, seen in container["read"]["servers"].items():
                for number, run in enumerate(seen["runs"]):
                    add(bundle, f"{base}/{name}/journal-{number}.txt", "\n".join(run))
                add(
                    bundle,
                    f"{base}/{name}/plan.json",
                    json.dumps({key: seen[key] for key in ("release", "argv", "unit")}),
                )
                for path, content in seen["files"].items():
                    add(bundle, f"{base}/{name}{path}", content)


def add(bundle, name, text):
    data = text.encode()
    item = tarfile.TarInfo(name)
    item.size, item.mode = len(data), 0o600
    bundle.addfile(item, io.BytesIO(data))
