"""Write all that a GPU machine needs beside the stack: one start script a case, the model's small files, the driver.

Plans come from the same code, profiles and flag tables as in a play, and the start script is the product's template.

usage: prepare.py OUTDIR MODEL_CONFIG
MODEL_CONFIG: config.json of Qwen3.6-27B
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2
import yaml

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "module_utils"), str(PROJECT / "lab/checkpoint")]

import make_checkpoint  # noqa: E402
from sglang_controller import flag_table  # noqa: E402
from sglang_pve.findings import Finding  # noqa: E402
from sglang_pve.plan import ENVIRONMENT, resolve  # noqa: E402

from action_plugins.sglang_stack_info import read_stack  # noqa: E402

NAME = "qwen3.6-27b"
SIZES = json.loads((PROJECT / "tests/unit/cases/qwen3.6-27b.json").read_text())
PYTHON = "3.12"
Data = dict[str, Any]


def plan_of(case: Data, data: Data, stack: Data, config: Data) -> Data:
    """The plan of one case, as action_plugins/sglang_plan.py resolves it; a bare command line has no pools."""
    if "argv" in case:
        more = [word for name, value in data["common"].items() for word in (f"--{name}", str(value))]
        own = ["--model-path", data["model_path"], "--served-model-name", NAME, "--enable-metrics"]
        return {"argv": [*own, *more, *case["argv"]], "env": dict(ENVIRONMENT), "pools": {}, "memory": {}}
    head = {"bytes": SIZES["mtp_bytes"], "complete": True, "missing": []}
    plan = resolve(
        profile=yaml.safe_load((PROJECT / f"profiles/{case['profile']}.yml").read_text()),
        engine=stack["engine"],
        flag_table=flag_table(stack["engine"]),
        checkpoint={"config": config, "bytes": SIZES["bytes"], "mtp": head},
        gpu=data["gpu"],
        workload={**data["workload"], **case.get("workload", {})},
        model_path=data["model_path"],
        served_model_name=NAME,
        allow_reduced_state=case.get("allow_reduced_state", False),
        overrides={**data["common"], **case.get("flags", {})},
        env_overrides={
            **(stack.get("environment") or {}),
            **(data["simulated_acceptance"] if case.get("simulated") else {}),
            **case.get("environment", {}),
        },
    )
    for finding in plan["findings"]:
        print(f"{case['name']}: {Finding(**finding).sentence()}")
    if not plan["argv"]:
        sys.exit(f"{case['name']}: no plan")
    return plan


def render(plan: dict[str, Any], stack: dict[str, Any]) -> str:
    loader = jinja2.FileSystemLoader(PROJECT / "templates/release")
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return environment.get_template("run.j2").render(
        sglang_model_stage=False,
        _plan_stack_root=f"/opt/sglang/stacks/{stack['id']}",
        _plan_cuda_home=f"/opt/sglang/stacks/{stack['id']}/cuda",
        _plan_cache=f"{stack['id']}/gpu-test",
        sglang_start_timeout=1800,
        _plan_named=plan,
    )


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """config.json with the real shapes, and the lab's tokenizer, whose special ids it then names."""
    folder.mkdir(parents=True)
    files = make_checkpoint.small_files()
    ids = {key: value for key, value in files["config.json"].items() if key.endswith("_token_id")}
    # The lab's engine needs no video processor; the real one loads it with the image processor.
    image = files["preprocessor_config.json"]
    video = {key: value for key, value in image.items() if key != "image_processor_type"}
    files["video_preprocessor_config.json"] = {**video, "video_processor_type": "Qwen3VLVideoProcessor"}
    for name, content in {**files, "config.json": {**config, **ids}}.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(make_checkpoint.CHAT_TEMPLATE)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit((__doc__ or "").strip())
    out, config = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    data = yaml.safe_load((HERE / "cases.yml").read_text())
    stack = read_stack(PROJECT / "stacks", data["stack"], PYTHON)
    shutil.rmtree(out, ignore_errors=True)
    write_model(out / "model", config)
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "module_utils/sglang_pve", out / "sglang_pve", ignore=no_caches)
    shutil.copy(HERE / "machine.py", out)
    shutil.copy(HERE / "load.py", out)
    cases = []
    for case in data["cases"]:
        plan = plan_of(case, data, stack, config)
        folder = out / "releases" / case["name"]
        folder.mkdir(parents=True)
        (folder / "run").write_text(render(plan, stack))
        loads = [{"name": name, **data["loads"][name]} for name in case["loads"]]
        cases.append({"name": case["name"], "plan": plan, "loads": loads})
    head = {"stack": data["stack"], "stack_id": stack["id"], "engine": stack["engine"], "model_name": NAME}
    head.update(model_path=data["model_path"], leave_gib=data["leave_gib"], planned_for=data["gpu"])
    (out / "cases.json").write_text(json.dumps({**head, "cases": cases}, indent=1) + "\n")
    print(f"{out}: {len(cases)} cases for {data['stack']} ({stack['id']})")


if __name__ == "__main__":
    main()
