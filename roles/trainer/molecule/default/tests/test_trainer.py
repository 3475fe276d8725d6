# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role trainer leaves: torch in its environment, the trainer on the shared file system, and both at work together."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[3] / "files" / "requirements.txt"
LINE = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d I \[train\.py:\d+\] Batch (\d+) Loss: (-?\d+\.\d{5}), Speed: \d+\.\d\d samples/sec, lr: \d+\.\d{6}"


@pytest.fixture(scope="module")
def folder(host):
    """The newest version of the trainer."""
    return host.check_output("ls -dt /fsx/muster/trainer/*/ | head -n 1").rstrip("/")


@pytest.fixture(scope="module")
def venv(host):
    """The environment that the node's manifest names."""
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    return next(path for path in manifest["components"]["trainer"]["artefacts"] if path.endswith("/.muster-made")).rsplit("/", 1)[0]


def test_environment_is_complete(host, venv):
    stamp = host.file(f"{venv}/.muster-made")
    assert stamp.exists
    assert stamp.user == "root"
    assert host.check_output(f"{venv}/bin/python -m pip check --disable-pip-version-check") == "No broken requirements found."


def test_torch_is_the_required_one(host, venv):
    required = re.search(r"^torch==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)[1]
    assert host.check_output(f"{venv}/bin/python -c 'import torch; print(torch.__version__)'").split("+")[0] == required


def test_the_requirements_on_the_node_are_the_roles(host):
    assert host.file("/usr/lib/muster/trainer-requirements.txt").content_string == REQUIREMENTS.read_text()


def test_the_wheel_is_what_is_installed(host, folder):
    [wheel] = host.check_output(f"ls {folder}/wheel").split()
    assert re.fullmatch(r"muster_trainer-[0-9.]+-py3-none-any\.whl", wheel)
    names = host.check_output(f"python3 -m zipfile --list {folder}/wheel/{wheel} | awk '{{print $1}}' | grep '^trainer/.*py$'").split()
    assert names
    packed = f"import zipfile; print(zipfile.ZipFile('{folder}/wheel/{wheel}').read('trainer/train.py').decode(), end='')"
    assert host.file(f"{folder}/trainer/train.py").content_string.strip() == host.check_output(f'python3 -c "{packed}"').strip()


def test_the_trainer_needs_no_ansible(host, venv, folder):
    imported = "import sys, trainer.train; print(sorted({name.split('.')[0] for name in sys.modules} & {'ansible', 'ansible_collections'}))"
    assert host.check_output(f'env PYTHONPATH={folder} {venv}/bin/python -c "{imported}"') == "[]"


def test_three_steps_on_one_rank(host, venv, folder):
    """As a job's user, who can write neither into the environment nor into the trainer's folder."""
    python = f"runuser -u nobody -- env PYTHONPATH={folder} HOME=/tmp/muster-train {venv}/bin/python -m trainer"
    host.check_output("rm -rf /tmp/muster-train && install -d -o nobody /tmp/muster-train")
    host.check_output(f"cd /tmp/muster-train && {python} prepare-data --out data --tokens 20000")
    train = "--model tiny --dataset_path data --max_steps 3 --train_batch_size 1 --backend gloo --checkpoint_dir checkpoints"
    output = host.check_output(f"cd /tmp/muster-train && {python} train {train} 2>&1; rm -rf /tmp/muster-train")
    steps = re.findall(LINE, output, re.MULTILINE)
    assert len(steps) == 3, output
    assert all(math.isfinite(float(loss)) and float(loss) > 0 for _, loss in steps)
