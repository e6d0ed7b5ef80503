"""The installed engine, its checkpoints and its cards, for the tests beside this file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import Run, cards

from lab.engine import build_wheel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A folder with the installed engine, both checkpoints and a fake nvidia-smi of eight cards."""
    folder = tmp_path_factory.mktemp("lab")
    wheel, _ = build_wheel.build(folder / "wheels")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True)
    for name, options in (("model", []), ("model-no-mtp", ["--no-mtp"])):
        maker = ROOT / "lab/checkpoint/make_checkpoint.py"
        subprocess.run([sys.executable, maker, folder / name, *options], check=True, stdout=subprocess.PIPE)
    cards(folder / "nvidia-smi", "12.0")
    return folder


@pytest.fixture
def start(lab, tmp_path):
    runs = []

    def make(*flags, **options):
        runs.append(Run(lab, tmp_path, *flags, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.process.kill()
        run.process.wait()


@pytest.fixture
def fault(tmp_path):
    def write(name="all", **content):
        folder = tmp_path / "faults"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))

    return write
