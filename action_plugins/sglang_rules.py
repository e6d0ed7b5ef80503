# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge facts by the rules, print every finding and the verdict, and fail on an error. Runs on the controller."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.color import ANSIBLE_COLOR

# Ansible puts module_utils in the path of modules only, not of plugins.
sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))
from sglang_controller import FLAGS, PROJECT, flag_table, publish, write
from sglang_pve import facts, findings, report, rules, verdict
from sglang_pve.flags import FlagTableError

ARGUMENTS = {
    "containers": {"type": "list", "elements": "dict", "default": []},
    "file": {"type": "path"},
    "waive": {"type": "dict", "default": {}},
    "rules_dir": {"type": "path"},
    "flags_dir": {"type": "path"},
    "json": {"type": "str", "default": ""},
    "brief": {"type": "bool", "default": False},
    "save": {"type": "path"},
}


class ActionModule(ActionBase):
    """Arguments as library/sglang_rules.py documents them."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        tables = Tables(Path(args["flags_dir"] or FLAGS))
        try:
            known = read_rules(Path(args["rules_dir"] or PROJECT / "rules"))
            if args["file"]:
                documents = verdict.read_documents(load_documents(Path(args["file"])), args["file"])
                subjects = [verdict.Subject("", documents, [], args["waive"])]
            else:
                subjects = [self._subject(one, tables) for one in args["containers"]]
            judged = verdict.judge_all(known, subjects, tables.get)
        except (rules.RuleError, verdict.FactsError) as error:
            raise AnsibleActionFail(f"Nothing was touched. {error}") from error
        if args["save"]:
            save(Path(args["save"]), [one for subject in subjects for one in subject.documents])
        return self._answer(judged, args["json"], args["brief"])

    @staticmethod
    def _subject(container, tables):
        """A container as sglang_preflight judged it, with the plans of its servers."""
        judged = container["judged"]
        servers = [{**server, "gpu": judged["cards"].get(server["host"])} for server in container["servers"]]
        documents = facts.of_servers(judged["facts"], servers, tables.get)
        made = [findings.Finding(**item) for item in judged["findings"]]
        return verdict.Subject(container["leader"], documents, made, judged["waive"], container.get("waived", {}))

    @staticmethod
    def _answer(judged, target, brief):
        remaining = findings.worst_first(findings.merged(item for one in judged for item in one.remaining))
        waived = [pair for one in judged for pair in one.waived]
        word, counts = report.preflight_verdict(remaining, len(waived))
        answer = {
            "verdict": word,
            "said": counts,
            "findings": [item.as_dict() for item in remaining],
            "waived": {one.subject: [{**item.as_dict(), "reason": why} for item, why in one.waived] for one in judged},
        }
        listed = [item for item in remaining if not (brief and item.level == "not checked")]
        shown = [report.findings_table(listed, ANSIBLE_COLOR), report.waived_lines(waived, ANSIBLE_COLOR)]
        lines = [*filter(None, shown), f"verdict: {report.paint(word, word, ANSIBLE_COLOR)} ({counts})"]
        publish(answer, ["\n".join(lines)], target)
        errors = findings.errors(remaining)
        if errors:
            said = "\n".join(item.sentence() for item in errors)
            return {"changed": False, "failed": True, "msg": f"Nothing was touched. {said}"}
        return {**answer, "changed": False}


class Tables:
    """The engines' flag tables, each read once; None for an engine that has none."""

    def __init__(self, directory):
        self.directory, self.read = directory, {}

    def get(self, engine):
        if engine not in self.read:
            path = self.directory / f"sglang-{engine}.tsv"
            try:
                self.read[engine] = flag_table(engine, self.directory) if path.exists() else None
            except FlagTableError as error:
                raise AnsibleActionFail(str(error)) from error
        return self.read[engine]


def read_rules(directory):
    """Every rule of a directory. Raises RuleError."""
    files = {}
    for path in sorted(directory.glob("*.yml")):
        try:
            files[path.name] = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise rules.RuleError(f"{path}: {' '.join(str(error).split())}") from error
    if not files:
        raise rules.RuleError(f"no rules in {directory}; expected *.yml")
    return rules.load(files)


def load_documents(path):
    """The documents of a YAML stream or a JSON file. Raises FactsError."""
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        seen = f"facts file {path}: {error.strerror}"
        raise verdict.FactsError(f"{seen}; expected JSON or YAML as docs/facts.md shows") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise verdict.FactsError(
            f"facts file {path} is neither JSON nor YAML: {' '.join(str(error).split())}"
        ) from error


def save(path, documents):
    """Keep the facts, for their owner alone: they tell of the node and of who uses it."""
    text = "# Facts of a preflight, to be judged again: playbooks/preflight.yml -e sglang_facts_file=THIS\n"
    # Through JSON: Ansible's own kinds of text cannot be written as YAML.
    plain = [json.loads(json.dumps(facts.masked(one))) for one in documents]
    text += yaml.safe_dump_all(plain, sort_keys=False, explicit_start=True)
    write(path, text, 0o600)
