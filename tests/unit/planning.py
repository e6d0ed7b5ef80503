"""What the planner's tests share: the shipped data, and one model on one card."""

import json
from pathlib import Path
from typing import Any

import yaml
from sglang_controller import flag_table
from sglang_pve.memory import ENGINES, Geometry
from sglang_pve.plan import resolve

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).resolve().parent / "cases"
MODEL = json.loads((CASES / "qwen3.6-27b.json").read_text())
STARTS = yaml.safe_load((CASES / "starts-0.5.11.yml").read_text())["starts"]
GEOMETRY = Geometry.from_config(MODEL["config"])
ENGINE = ENGINES["0.5.11"]
RENAMES = yaml.safe_load((ROOT / "stacks/flags/renames.yml").read_text())
TABLES = {engine: flag_table(engine) for engine in ("0.5.11", "0.5.23")}
TABLE = TABLES["0.5.11"]
PROFILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "profiles").glob("*.yml"))}

RTX_PRO_6000_MIB = 97887
WORKLOAD = {
    "mean_input_tokens": 512,
    "mean_output_tokens": 256,
    "max_input_tokens": 2048,
    "max_output_tokens": 1024,
    "concurrency": 256,
}
COMPLETE = {"bytes": MODEL["mtp_bytes"], "complete": True, "missing": []}
ABSENT = {"bytes": 0, "complete": False, "missing": [f"mtp.layers.0.tensor{n}" for n in range(15)]}


def checkpoint(mtp: dict[str, Any] = COMPLETE, **changed: Any) -> dict[str, Any]:
    size = MODEL["bytes"] - MODEL["mtp_bytes"] + mtp["bytes"]
    return {"config": MODEL["config"], "bytes": size, "mtp": mtp, **changed}


def arguments(memory_mib: int = RTX_PRO_6000_MIB, **changed: Any) -> dict[str, Any]:
    """Arguments of resolve and climb, without the profile; ``changed`` are those that differ from the usual."""
    usual = {
        "engine": "0.5.11",
        "flag_table": TABLE,
        "checkpoint": checkpoint(),
        "gpu": {"card": "rtx-pro-6000", "memory_total_mib": memory_mib},
        "workload": WORKLOAD,
        "model_path": "/models/Qwen3.6-27B",
        "served_model_name": "qwen3.6-27b",
    }
    return {**usual, **changed}


def plan(name: str = "batch", memory_mib: int = RTX_PRO_6000_MIB, **changed: Any) -> dict[str, Any]:
    """A plan of the shipped data; ``changed`` are arguments of resolve."""
    return resolve(**{"profile": PROFILES[name], **arguments(memory_mib, **changed)})


def flags_of(planned: dict[str, Any]) -> dict[str, str]:
    """The plan's command line as a mapping; an option without value maps to ""."""
    argv, found = planned["argv"], {}
    for here, after in zip(argv, [*argv[1:], "--"]):
        if here.startswith("--"):
            found[here[2:]] = "" if after.startswith("--") else after
    return found


def ids(planned: dict[str, Any], level: str = "error") -> list[str]:
    return [finding["id"] for finding in planned["findings"] if finding["level"] == level]
