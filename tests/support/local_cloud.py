# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A local cloud in a process of its own, as a user starts it, and Packer and playbooks that use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import amazon_aws
import boto3
import get_packer
import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from localcloud.machines import Machines

ROOT = Path(__file__).parents[2]
PACKER = ROOT / ".venv/bin/packer"


class LocalCloud:
    """`python -m localcloud`, from `start` to `end`; `env` is the environment of its clients."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "CHECKPOINT_DISABLE": "1", "ANSIBLE_NOCOLOR": "1"}

    def start(self) -> LocalCloud:
        argv = [sys.executable, "-m", "localcloud", "--name", self.name]
        self._process = subprocess.Popen(argv, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, text=True)
        said = []
        while (line := self._process.stdout.readline()).startswith("export "):
            said.append(line[7:].strip().split("=", 1))
        assert said, "the cloud did not start"
        self.env |= dict(said)
        self.env["ANSIBLE_COLLECTIONS_PATH"] = f"{ROOT / 'collections'}:{amazon_aws.collections()}"
        return self

    def end(self) -> None:
        """End it as Ctrl-C does, and wait until everything is gone."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120)

    def clean(self) -> None:
        """Remove what a killed run left."""
        Machines(self.name, self.env).clean()

    def client(self, service: str, region: str = "us-east-1"):
        keys = {"aws_access_key_id": self.env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": self.env["AWS_SECRET_ACCESS_KEY"]}
        return boto3.client(service, region_name=region, endpoint_url=self.env["AWS_ENDPOINT_URL"], **keys)

    def running(self) -> list[str]:
        """Instances that are not terminated."""
        found = self.client("ec2").describe_instances()["Reservations"]
        return [each["InstanceId"] for one in found for each in one["Instances"] if each["State"]["Name"] != "terminated"]

    def left(self) -> list[str]:
        """The cloud's containers and images in the engine."""
        engine = find_engine()
        label = f"muster.fleet={self.name}"
        return [*engine.ask("ps", "--all", "--quiet", "--filter", f"label={label}").split(), *engine.image_names(label)]

    def run(self, *argv: str, log: str = "", timeout: float = 900) -> tuple[str, int]:
        """Run a command with this cloud; return its whole output and its exit code."""
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=ROOT, env={**self.env, "PWD": str(self.folder)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        if log:
            (self.folder / log).write_text(f"{done.stdout}\n{time.monotonic() - began:.1f} s\n")
        return done.stdout, done.returncode

    def play(self, playbook: str, *argv: str, log: str = "", **variables: object) -> tuple[str, int]:
        extra = ["-e", json.dumps(variables)] if variables else []
        return self.run(str(ROOT / ".venv/bin/ansible-playbook"), playbook, *extra, *argv, log=log)

    def build(self, purpose: str, results: Path, **variables: object) -> tuple[str, int]:
        return self.run(*build_argv(purpose, results, **variables), log=f"build-{results.name}.txt")


def need_packer() -> None:
    """Skip the test, with a reason, where Packer or one of its plugins is missing."""
    if not PACKER.exists() or len(get_packer.installed(str(PACKER))) < len(get_packer.PLUGINS):
        pytest.skip("not_run: Packer or a plugin of it is not here; make packer")


def with_packer(name: str, artifacts) -> Iterator[LocalCloud]:
    """For a fixture: a cloud for packer build. At its end nothing of it may be left."""
    need_packer()
    made = LocalCloud(name, artifacts.folder(name))
    artifacts.leave(f"local cloud {name}", made.clean)
    yield made.start()
    made.end()
    assert made.left() == []
    assert not (made.folder / "state/muster" / name).exists()


def build_argv(purpose: str, results: Path, **variables: object) -> list[str]:
    """`packer build` of an image of Debian 13, its results in a folder."""
    files = [f"-var-file=packer/{each}.pkrvars.hcl" for each in ("systems/debian-13-x86_64", f"purposes/{purpose}")]
    given = {"results": str(results), **variables}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    return [str(PACKER), "build", "-color=false", *files, *(f"-var={name}={text}" for name, text in texts.items()), "packer"]


def ami_of(said: str) -> str:
    """The AMI that the output of `packer build` names."""
    return re.findall(r"^us-east-1: (ami-\w+)$", said, re.MULTILINE)[-1]
