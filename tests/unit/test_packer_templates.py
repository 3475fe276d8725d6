# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Packer validates the templates with every file of variables; and publish.py tags an image after it is made."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import get_packer
import packer_files
import pytest
import yaml
from component_table import GROUPS, NAMES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packer"
PURPOSES = sorted(each.name for each in (FOLDER / "purposes").iterdir())
# Not on PATH: the tests run by .venv/bin/pytest as well.
PACKER = ROOT / ".venv/bin/packer"


def publisher():
    spec = importlib.util.spec_from_file_location("publish", FOLDER / "publish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def validate():
    """Run packer validate; return its output and exit code."""
    if not PACKER.exists():
        pytest.skip("not_run: Packer is not here; make packer")
    if not {f"{name} {get_packer.PLUGINS[name]}" for name in ("amazon", "ansible")} <= get_packer.installed(str(PACKER)):
        pytest.skip("not_run: Packer has not the plugins; make packer")

    def run(system: str, purpose: str, *more: str) -> tuple[str, int]:
        files = [f"-var-file={FOLDER / 'systems' / system}", f"-var-file={FOLDER / 'purposes' / purpose}"]
        env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        env |= {"CHECKPOINT_DISABLE": "1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        argv = [str(PACKER), "validate", *files, *more, str(FOLDER)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
        return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr), done.returncode

    return run


@pytest.mark.parametrize(("system", "purpose"), packer_files.once_each())
def test_packer_takes_every_file_of_variables(validate, system: str, purpose: str) -> None:
    said, code = validate(system, purpose)
    assert code == 0, said


@pytest.mark.parametrize("purpose", PURPOSES)
def test_packer_derives_the_components_as_the_tests_do(validate, purpose: str) -> None:
    system = next(name for name in packer_files.SYSTEMS if packer_files.stands(name, purpose))
    files = [f"-var-file={FOLDER / 'systems' / system}", f"-var-file={FOLDER / 'purposes' / purpose}"]
    argv = [str(PACKER), "console", *files, str(FOLDER)]
    said = subprocess.run(argv, input="jsonencode(local.components)", capture_output=True, text=True, check=False, timeout=120).stdout
    assert json.loads(said.splitlines()[-1]) == packer_files.installed(system, purpose)


LACKS = {
    "eks-gpu": "kubelet",
    "batch-gpu": "ecs_agent",
    "dlami-gpu": "nvidia_driver",
    "dlami-neuron": "neuron",
    "pcluster-gpu": "parallelcluster",
}


@pytest.mark.parametrize(("purpose", "lacks"), LACKS.items())
def test_a_purpose_refuses_a_base_that_it_cannot_stand_on(validate, purpose: str, lacks: str) -> None:
    text, code = validate("debian-13-x86_64.pkrvars.hcl", f"{purpose}.pkrvars.hcl")
    assert code != 0
    assert f"a base that brings {lacks}: {purpose} cannot stand on debian-13; take one of packer/systems whose brings names it" in " ".join(
        text.replace("│", " ").split()
    )


def test_init_finds_the_plugins_that_are_here(validate) -> None:
    done = subprocess.run([str(PACKER), "init", str(FOLDER)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('share_with_accounts=["12345"]', "twelve digits"),
        # Nobody else can use the account's own key.
        ('share_with_accounts=["123456789012"]', "Cannot share AMI encrypted with default KMS key"),
        ("kms_key_id=no such key", "not a valid KMS Key Id"),
        ('provenance={"location":"s3://images/p"}', "Provenance has location, s3://BUCKET/PREFIX or ssm:/PREFIX, and one of"),
        ('provenance={"location":"/tmp","kms_key_id":"alias/x"}', "Provenance has location, s3://BUCKET/PREFIX or ssm:/PREFIX, and one of"),
        ('provenance={"location":"ssm:/p","private_key":"/no/key"}', "/no/key is no file; provenance names a PEM file of this machine"),
    ],
)
def test_what_could_not_be_used_is_refused_before_anything_starts(validate, wrong: str, said: str) -> None:
    text, code = validate("debian-13-x86_64.pkrvars.hcl", "slurm-cpu.pkrvars.hcl", "-var", wrong)
    assert code != 0
    assert said in " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("profile", ["", "of-ours"])
def test_session_manager_needs_its_plugin_and_is_asked_for(validate, tmp_path: Path, profile: str) -> None:
    more = ("-var", "session_manager=true", "-var", f"iam_instance_profile={profile}", "-var", f"search_path=/none:{tmp_path}")
    files = ("debian-13-x86_64.pkrvars.hcl", "slurm-cpu.pkrvars.hcl")
    text, code = validate(*files, *more)
    assert code != 0
    assert "AWS's session-manager-plugin on PATH: session_manager reaches the builder by it; install it, or leave" in " ".join(text.split())
    (tmp_path / "session-manager-plugin").touch()
    assert validate(*files, *more) == ("The configuration is valid.\n", 0)


def test_the_files_name_components_and_groups_that_are_there() -> None:
    for each in PURPOSES:
        text = (FOLDER / "purposes" / each).read_text()
        found = dict(re.findall(r"^(\w+) *= (.*)$", text, re.MULTILINE))
        assert found["purpose"].strip('"') == each.split(".")[0]
        assert set(yaml.safe_load(found["components"])) <= set(NAMES), each
        assert set(yaml.safe_load(found.get("groups", "[]"))) <= GROUPS, each


def test_nothing_is_public_and_the_pinned_plugins_are_accepted() -> None:
    text = "".join(each.read_text() for each in FOLDER.glob("*.pkr.hcl"))
    assert "ami_groups" not in text
    assert "snapshot_groups" not in text
    least = re.findall(r'hashicorp/(\w+)"\s+version = ">= ([\d.]+)"', text)
    assert len(least) == 2
    for name, version in least:
        assert tuple(map(int, get_packer.PLUGINS[name].split("."))) >= tuple(map(int, version.split("."))), name


MANIFEST = {
    "stack": {"name": "debian-13", "sha256": "ab" * 32},
    "components": {"common": {"version": ""}, "slurm": {"version": "24.11.5~rc1"}},
}


def test_tags_name_the_stack_and_every_version() -> None:
    assert publisher().image_tags(MANIFEST) == {
        "muster:stack": "debian-13",
        "muster:stack-sha256": "ab" * 32,
        "muster:version:slurm": "24.11.5-rc1",
    }
    many = {"stack": None, "components": {f"c{each}": {"version": "1"} for each in range(60)}}
    assert len(publisher().image_tags(many)) == 40


def test_the_amis_are_those_of_the_last_build() -> None:
    builds = [
        {"packer_run_uuid": "old", "artifact_id": "us-east-1:ami-1"},
        {"packer_run_uuid": "new", "artifact_id": "us-east-1:ami-2,us-west-2:ami-3"},
    ]
    assert publisher().read_amis({"builds": builds, "last_run_uuid": "new"}) == {"us-east-1": "ami-2", "us-west-2": "ami-3"}
