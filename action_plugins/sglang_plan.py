# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve a profile into a plan, on the controller: profiles and flag tables are data that never leaves it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# A controller-side plugin does not see the project's module_utils by itself.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "module_utils"))

from sglang_controller import FLAGS, PROJECT, flag_table
from sglang_pve import estimate, tuning
from sglang_pve.findings import Finding
from sglang_pve.flags import FlagTableError, options_of
from sglang_pve.ladder import climb
from sglang_pve.plan import WORKLOAD_KEYS, WORKLOAD_OPTIONS

ARGUMENTS = {
    "profile": {"type": "str", "required": True},
    "profiles_dir": {"type": "path"},
    "flags_dir": {"type": "path"},
    "stack": {"type": "dict", "required": True},
    "checkpoint": {"type": "dict", "required": True},
    "gpu": {"type": "dict", "required": True},
    "workload": {
        "type": "dict",
        "required": True,
        "options": {
            **{key: {"type": "int", "required": True} for key in WORKLOAD_KEYS},
            **{key: {"type": "int", "default": 0} for key in WORKLOAD_OPTIONS},
        },
    },
    "model_path": {"type": "str", "required": True},
    "served_model_name": {"type": "str", "required": True},
    "allow_reduced_state": {"type": "bool", "default": False},
    "mtp": {"type": "bool"},
    "flags": {"type": "dict", "default": {}},
    "env": {"type": "dict", "default": {}},
    "tuned": {"type": "list", "elements": "dict", "default": []},
    "report": {"type": "bool", "default": False},
}
PASSED_ON = ("checkpoint", "gpu", "workload", "model_path", "served_model_name", "allow_reduced_state", "mtp")


class UnknownProfileError(Exception):
    """The inventory asks for a profile that there is not."""

    def __init__(self, name: str, directory: Path, known: list[str]) -> None:
        super().__init__(name)
        seen = f"there is no profile {name!r} in {directory}"
        cure = "Correct sglang_profile, or add the file."
        self.finding = Finding("profile-unknown", "error", seen, f"one of {', '.join(known) or 'none'}", cure)


class ActionModule(ActionBase):
    """Reads profiles and flag tables beside this plugin unless told otherwise; needs no connection."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        engine = args["stack"].get("engine")
        if not engine:
            raise AnsibleActionFail("stack has no 'engine'; expected a stack's metadata, which names its version")
        try:
            profiles = self._profiles(args)
        except UnknownProfileError as error:
            return self._answer(result, args, {"findings": [error.finding.as_dict()], "card": args["gpu"].get("card")})
        try:
            table = flag_table(engine, Path(args["flags_dir"] or FLAGS))
        except FlagTableError as error:
            raise AnsibleActionFail(f"{error}. Choose a stack whose engine has a table there, or add one.") from error
        ladder = climb(
            profiles[args["profile"]],
            profiles,
            engine=engine,
            flag_table=table,
            overrides=args["flags"],
            env_overrides={**(args["stack"].get("environment") or {}), **args["env"]},
            **{name: args[name] for name in PASSED_ON},
        )
        card = estimate.card_of(str(args["gpu"].get("name") or args["gpu"].get("card") or ""), self._cards())
        for plan in ladder:
            flags = options_of(plan["argv"], table)
            plan["estimate"] = estimate.of_plan(plan, flags, args["checkpoint"], args["workload"], card)
            plan["hash"] = tuning.fingerprint(plan)
        own = self._tune_key(args)
        ladder = tuning.prefer(ladder, args["tuned"], own)
        return {**self._answer(result, args, ladder[0], ladder), "tune_key": own}

    @staticmethod
    def _tune_key(args: dict[str, Any]) -> dict[str, str]:
        work = {name: args[name] for name in ("workload", "allow_reduced_state", "profile", "mtp", "flags", "env")}
        digest = str(args["checkpoint"].get("digest") or "")
        return tuning.key(str(args["gpu"].get("card") or ""), digest, str(args["stack"].get("id") or ""), work)

    @staticmethod
    def _cards() -> list[dict[str, Any]]:
        return list(yaml.safe_load((PROJECT / "cards/known.yml").read_text(encoding="utf-8"))["cards"])

    @staticmethod
    def _answer(
        result: dict[str, Any], args: dict[str, Any], plan: dict[str, Any], ladder: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        result.update(changed=False, plan=plan, ladder=list(ladder))
        if args["report"]:
            return result
        sentences = {level: [] for level in ("error", "warning", "not checked", "note")}
        for finding in plan["findings"]:
            sentences[finding["level"]].append(Finding(**finding).sentence())
        result["warnings"] = sentences["warning"] + sentences["not checked"]
        if sentences["error"]:
            heading = f"profile {args['profile']} gives no plan for card {plan['card']}:"
            result.update(failed=True, msg="\n".join([heading, *sentences["error"]]))
        return result

    def _profiles(self, args: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Every profile, since one's ladder may lead to another."""
        directory = Path(args["profiles_dir"] or PROJECT / "profiles")
        files = {path.stem: path for path in sorted(directory.glob("*.yml"))}
        if args["profile"] not in files:
            raise UnknownProfileError(args["profile"], directory, list(files))
        found = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in files.items()}
        for name, profile in found.items():
            if not isinstance(profile, dict):
                raise AnsibleActionFail(f"{files[name]} holds {type(profile).__name__}, not a mapping")
        return found
