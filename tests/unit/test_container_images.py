# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Container images: Packer validates the templates; what is installed over a base; the image's name; the push to ECR."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import boto3
import get_packer
import pytest
import yaml
from component_table import GROUPS, NAMES
from moto import mock_aws

from ansible_collections.muster.fleet.plugins.module_utils.stack.container_plan import plan

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packer/containers"
PURPOSES = ["nccl-tests", "slurm-node", "trainer"]
PACKER = ROOT / ".venv/bin/packer"
REPOSITORY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team"


@pytest.fixture
def publisher():
    spec = importlib.util.spec_from_file_location("publish_container", FOLDER / "publish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def validate(purpose: str, *more: str) -> tuple[str, int]:
    if not PACKER.exists():
        pytest.skip("not_run: Packer is not here; make packer")
    if not {f"{name} {get_packer.PLUGINS[name]}" for name in ("docker", "ansible")} <= get_packer.installed(str(PACKER)):
        pytest.skip("not_run: Packer has not the plugins; make packer")
    argv = [str(PACKER), "validate", f"-var-file={FOLDER / purpose}.pkrvars.hcl", *more, str(FOLDER)]
    done = subprocess.run(argv, env={**os.environ, "CHECKPOINT_DISABLE": "1"}, capture_output=True, text=True, check=False, timeout=300)
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|│", "", done.stdout + done.stderr).split()), done.returncode


@pytest.mark.parametrize(
    ("purpose", "base"),
    [
        ("slurm-node", "localhost:5000/own@sha256:" + "ab" * 32),
        ("nccl-tests", "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-gpu-py313-cu132-ubuntu24.04-ec2"),
        ("trainer", "nvcr.io/nvidia/pytorch:26.10-py3"),
    ],
)
def test_packer_takes_every_purpose_on_any_base(purpose: str, base: str) -> None:
    said, code = validate(purpose, f"-var=base={base}", f"-var=repository={REPOSITORY}")
    assert code == 0, said


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("base=--privileged", "The base is no reference of an image; give one such as nvcr.io/nvidia/pytorch:26.10-py3."),
        ("purpose=nccl", "The purpose of a container image is nccl-tests, slurm-node or trainer"),
        ("prefix=Own Name", "The prefix cannot stand before an image's name; give one such as localhost/team."),
        ("repository=docker.io/own/image", "The repository is none of ECR; give 123456789012.dkr.ecr.us-east-1.amazonaws.com"),
        (f"repository={REPOSITORY}/Team", "The repository is none of ECR"),
    ],
)
def test_what_could_not_be_made_is_refused_before_anything_starts(wrong: str, sentence: str) -> None:
    said, code = validate("slurm-node", f"-var={wrong}")
    assert code != 0
    assert sentence in said


def test_the_files_name_components_and_groups_that_are_there() -> None:
    assert sorted(each.name.split(".")[0] for each in FOLDER.glob("*.pkrvars.hcl")) == PURPOSES
    for purpose in PURPOSES:
        found = dict(re.findall(r"^(\w+) *= (.*)$", (FOLDER / f"{purpose}.pkrvars.hcl").read_text(), re.MULTILINE))
        assert found["purpose"] == f'"{purpose}"'
        assert set(yaml.safe_load(found["components"])) <= set(NAMES)
        assert set(yaml.safe_load(found["groups"])) <= GROUPS


def test_the_pinned_plugins_are_accepted() -> None:
    least = dict(re.findall(r'hashicorp/(\w+)"\s+version = ">= ([\d.]+)"', (FOLDER / "container.pkr.hcl").read_text()))
    assert sorted(least) == ["ansible", "docker"]
    for name, version in least.items():
        assert tuple(map(int, get_packer.PLUGINS[name].split("."))) >= tuple(map(int, version.split("."))), name


STACK = {
    "name": "own",
    "cuda": {"version": "13.2.2"},
    "efa": {"version": "1.51.0"},
    "nccl": {"version": "2.30.7"},
    "aws_ofi_nccl": {"version": "1.22.0"},
    "nccl_tests": {"version": "2.19.6"},
    "slurm": {"version": "24.11.5"},
}


def found(**versions: str) -> dict:
    return {name: {"version": version, "source": "libraries"} for name, version in versions.items()}


@pytest.mark.parametrize(
    ("base", "install", "kept"),
    [
        ({}, ["cuda", "efa", "nccl", "aws_ofi_nccl", "nccl_tests"], {}),
        # Of 13.2 all the same.
        ({"cuda": "13.2.1"}, ["efa", "nccl", "aws_ofi_nccl", "nccl_tests"], {"cuda": "13.2.1"}),
        ({"cuda": "13.3.20", "nccl": "2.30.7"}, ["efa", "aws_ofi_nccl", "nccl_tests"], {"cuda": "13.3.20", "nccl": "2.30.7"}),
        ({"cuda": "12.9.86", "nccl": "2.9.9"}, ["cuda", "efa", "nccl", "aws_ofi_nccl", "nccl_tests"], {}),
        ({"aws_ofi_nccl": "1.22.0", "efa": "1.52.0"}, ["cuda", "nccl", "nccl_tests"], {"aws_ofi_nccl": "1.22.0", "efa": "1.52.0"}),
    ],
)
def test_only_what_is_missing_is_installed_over_a_base(base: dict, install: list, kept: dict) -> None:
    done = plan(["cuda", "efa", "nccl", "aws_ofi_nccl", "nccl_tests"], STACK, found(**base), "own:1")
    assert done == {"install": install, "kept": kept, "refused": []}


@pytest.mark.parametrize(("component", "has", "wanted"), [("nccl", "2.31.2", "2.30.7"), ("aws_ofi_nccl", "1.22.1", "1.22.0")])
def test_nccl_and_its_plugin_are_never_replaced_by_older_ones(component: str, has: str, wanted: str) -> None:
    said = f"Base own:1 has {component} {has}, and stack own would replace it by {wanted}, which is older; "
    remedy = f"take a stack with {has} or newer, or leave {component} out."
    assert plan(["cuda", component], STACK, found(**{component: has}), "own:1")["refused"] == [said + remedy]
    assert plan(["cuda"], STACK, found(**{component: has}), "own:1")["refused"] == []


def test_a_node_gets_its_slurm_whatever_the_base_has() -> None:
    """The role does more than install packages."""
    assert plan(["common", "slurm"], STACK, found(slurm="26.05.5"), "own:1")["install"] == ["common", "slurm"]


def test_without_the_installer_in_the_stack_there_is_no_efa() -> None:
    stack = {name: each for name, each in STACK.items() if name != "efa"}
    assert plan(["efa", "nccl"], stack, {}, "own:1")["install"] == ["nccl"]


VERSIONS = {"cuda": "12.8.1", "efa": "1.43.2", "aws_ofi_nccl": "1.16.3", "nccl": "2.27.7", "nccl_tests": "2.16.9"}


@pytest.mark.parametrize(
    ("purpose", "versions", "names"),
    [
        ("nccl-tests", VERSIONS, ["nccl-tests:cuda12.8.1-efa1.43.2-ofi1.16.3-nccl2.27.7-tests2.16.9"]),
        (
            "nccl-tests",
            {name: VERSIONS[name] for name in ("cuda", "nccl", "nccl_tests")},
            ["nccl-tests:cuda12.8.1-efa0-ofi0-nccl2.27.7-tests2.16.9"],
        ),
        (
            "trainer",
            {**VERSIONS, "trainer": "2.15.0"},
            ["trainer:pytorch2.15.0-cuda12.8.1-efa1.43.2-ofi1.16.3-nccl2.27.7-tests2.16.9", "fsdp:pytorch2.15.0"],
        ),
        ("slurm-node", {"slurm": "24.11.5"}, ["slurm-node:slurm24.11.5"]),
    ],
)
def test_tags_are_those_of_the_reference(publisher, purpose: str, versions: dict, names: list) -> None:
    assert publisher.image_names(purpose, versions) == names


def test_an_image_without_what_its_tag_tells_is_refused(publisher) -> None:
    with pytest.raises(publisher.PublishError, match="The image has no nccl_tests, of which a tag of nccl-tests tells the version"):
        publisher.image_names("nccl-tests", {"cuda": "12.8.1", "nccl": "2.27.7"})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """What a build leaves: NCCL of the base, the rest by Muster."""
    builds = [{"packer_run_uuid": each, "artifact_id": f"sha256:{each}"} for each in ("old", "new")]
    (tmp_path / "packer.json").write_text(json.dumps({"builds": builds, "last_run_uuid": "new"}))
    components = {"common": {"version": ""}, "cuda": {"version": "12.8"}, "nccl_tests": {"version": "2.16.9"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"components": components}))
    facts = {"base": {}, "image": found(nccl="2.27.7", cuda="12.8.1")}
    (tmp_path / "stack_facts.json").write_text(json.dumps(facts))
    return tmp_path


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A stand-in for docker, which records its arguments."""
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/told\n[ "$1" != login ] || cat >{tmp_path}/password\n[ "$1" != "$FAILS" ] || '
                    '{ echo "denied: no basic auth credentials" >&2; exit 1; }\n')  # fmt: skip
    path.chmod(0o755)
    return path


TAG = "cuda12.8.1-efa0-ofi0-nccl2.27.7-tests2.16.9"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        yield boto3.client("ecr", region_name="us-west-2")


def test_an_image_is_named_by_what_it_has(publisher, results: Path, engine: Path, capsys) -> None:
    assert publisher.main([str(results), "nccl-tests", str(engine), "localhost/own"]) == 0
    assert (results / "told").read_text() == f"tag sha256:new localhost/own/nccl-tests:{TAG}\n"
    assert capsys.readouterr().out == f"localhost/own/nccl-tests:{TAG}\n"


def test_a_repository_is_made_once_and_scans_what_is_pushed(publisher, results: Path, engine: Path, aws) -> None:
    for _ in range(2):
        assert publisher.main([str(results), "nccl-tests", str(engine), "localhost", REPOSITORY]) == 0
    [repository] = aws.describe_repositories()["repositories"]
    assert repository["repositoryName"] == "team/nccl-tests"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
    told = (results / "told").read_text().splitlines()
    assert told[1:4] == [
        f"login --username AWS --password-stdin {REPOSITORY.split('/', maxsplit=1)[0]}",
        f"tag sha256:new {REPOSITORY}/nccl-tests:{TAG}",
        f"push {REPOSITORY}/nccl-tests:{TAG}",
    ]
    # The password went through the standard input alone.
    password = (results / "password").read_text()
    assert password
    assert password not in "".join(told)


@pytest.mark.usefixtures("aws")
def test_a_push_that_is_denied_is_one_sentence(publisher, results: Path, engine: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FAILS", "push")
    assert publisher.main([str(results), "nccl-tests", str(engine), "localhost", REPOSITORY]) == 1
    said = capsys.readouterr().err
    assert said == f"publish.py: {engine} push failed for {REPOSITORY}/nccl-tests:{TAG}: denied: no basic auth credentials\n"


def test_a_call_that_ecr_denies_is_one_sentence(publisher, results: Path, engine: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(boto3, "client", lambda *args, **more: Denied())
    assert publisher.main([str(results), "nccl-tests", str(engine), "localhost", REPOSITORY]) == 1
    said = capsys.readouterr().err
    assert f"sha256:new is made and could not be pushed to {REPOSITORY} (" in said
    assert "AccessDeniedException" in said
    assert len(said.splitlines()) == 1


class Denied:
    exceptions = type("Exceptions", (), {"RepositoryNotFoundException": KeyError})

    def describe_repositories(self, **_) -> None:
        from botocore.exceptions import ClientError

        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, "DescribeRepositories")
