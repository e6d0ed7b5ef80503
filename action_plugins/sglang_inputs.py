# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what the inventory says of one server and hand it on in one piece; runs on the controller, connects nowhere."""

from __future__ import annotations

import re

from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

# A play's `serial` does not see the variables of hosts and groups: found there, it would silently do nothing.
EXTRA_VARS_ONLY = ("sglang_rollout_serial", "sglang_rollback_to", "sglang_rollback_fast")


class ActionModule(ActionBase):
    """Arguments: index, port, nccl_port, listen, stack, vmid, node, peers, servers."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args, host = self._task.args, task_vars["inventory_hostname"]
        wrong = list(self._wrong(args, task_vars))
        if wrong:
            return {"failed": True, "msg": f"{host}: " + " ".join(wrong)}
        index = int(args["index"])
        return {
            "changed": False,
            "server": {
                "host": host,
                "name": f"gpu{index}",
                "index": index,
                "port": int(args["port"]),
                "nccl_port": int(args["nccl_port"]),
                "listen": args["listen"],
                "stack": args["stack"],
            },
            "peers": args["peers"],
            "leader": args["peers"][0],
            "names": {f"gpu{self._index(task_vars, name)}": name for name in args["servers"]},
        }

    @staticmethod
    def _index(task_vars, host):
        """GPU index of any server of the inventory, selected or not: sglang_gpu, else the number its name ends in."""
        return task_vars["hostvars"][host].get("sglang_gpu") or re.search("[0-9]*$", host)[0]

    def _wrong(self, args, task_vars):
        extra = load_extra_vars(self._loader)
        # What all servers have in common is said once, by the leader.
        for name in EXTRA_VARS_ONLY if args["peers"][0] == task_vars["inventory_hostname"] else ():
            if name in task_vars and name not in extra:
                yield f"{name} stands in the inventory, where it has no effect. Give it with -e {name}=VALUE."
        if args["node"] not in task_vars["hostvars"]:
            yield f"sglang_node is {args['node']!r}, which is not in the inventory. Add that host, with its address."
        if not str(args["vmid"]).isdigit():
            yield f"sglang_vmid is {args['vmid']!r}; expected the container's number, such as 200."
        if not str(args["index"]).isdigit():
            yield (
                f"no GPU index: expected a host name that ends in one, such as ct200-gpu3, or sglang_gpu "
                f"(found {args['index']!r})."
            )
        for key in ("port", "nccl_port"):
            if not str(args[key]).isdigit() or not 1024 <= int(args[key]) <= 65535:
                yield f"sglang_{key} is {args[key]!r}; expected a port from 1024 to 65535."
