# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the request that job.yml renders for SageMaker runs on two hosts, by the local mode of SageMaker's own SDK.

Local mode ends without an error when a container fails, so the exit codes of the containers count. It has no control plane: the request is
that of `verb=render`, and states, logs and retries of the service are not part of this.

Run by `make proofs`, or `pytest --engine tests/proof/sagemaker_local.py`; about two minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_cloud import ROOT

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from localkube.images import environment, trainer_archive, trainer_image

pytestmark = pytest.mark.engine

NAME = f"smlocal{os.getpid()}"
IMAGE = f"localhost/{NAME}:1"
NETWORK = "sagemaker-local"  # local mode calls it so
# Local mode knows channels, but no mounts: the environment with torch is a channel, which the image has where its programs expect it.
SHARED = "/opt/ml/input/data/shared"
# Each line is one write, because the ranks of a host share its output.
SUM = (
    "import os, sys, torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.ones(1); d.all_reduce(t); "
    "r, n, h = d.get_rank(), d.get_world_size(), os.uname().nodename; "
    "sys.stdout.write(f'rank {r} of {n} on {h} sum {int(t)}\\n'); d.barrier()"
)
FAIL = "import os, sys; print('no data on', os.environ['RANK'], flush=True); sys.exit(9)"


class Local:
    """Rendered requests and SageMaker's local mode, in a folder."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder, self.engine = folder, engine
        self.bin = folder / "venv/bin"

    def setup(self) -> None:
        """The environment with the SDK, and what stands for docker and its compose plugin."""
        subprocess.run([sys.executable, "-m", "venv", str(self.folder / "venv")], check=True)
        wanted = str(ROOT / "requirements/sagemaker-local.txt")
        argv = [str(self.bin / "pip"), "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes", "-r", wanted]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.exit(f"The SDK of SageMaker cannot be installed: {done.stderr.strip().splitlines()[-1:]}", returncode=75)
        for name, words in {"docker": self.engine.name, "docker-compose": f"{self.bin}/podman-compose"}.items():
            (self.bin / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (self.bin / name).chmod(0o755)
        limits = ", ".join(f'"{name}={value}:{value}"' for name, value in self.engine.ulimits.items())
        (self.folder / "containers.conf").write_text(f"[containers]\ndefault_ulimits = [{limits}]\n")

    def render(self, name: str, **fields: Any) -> Path:
        """The request for a document, written by job.yml."""
        channels = {"shared": f"fsx://fs-0123456789abcdef0{cache_dir(os.environ)}/shared"}
        target = {"role": "arn:aws:iam::123456789012:role/train", "output": "s3://data/jobs", "instance_type": "c7i.large", "image": IMAGE}
        target |= {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
        document = {"name": name, "nodes": 2, "launcher": {"channels": channels}, "time_limit": 5, **fields}
        (self.folder / f"{name}.yml").write_text(yaml.safe_dump(document))
        variables = {"muster_fleet": NAME, "muster_launcher": "sagemaker", "muster_target": target}
        (self.folder / "sagemaker.yml").write_text(yaml.safe_dump({"all": {"vars": variables}}))
        env = {**os.environ, "PWD": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state"), "LC_ALL": "C.UTF-8"}
        words = ["-i", str(self.folder / "sagemaker.yml"), "playbooks/job.yml", "-e", f"job=@{name}.yml", "-e", "verb=render"]
        argv = [str(ROOT / ".venv/bin/ansible-playbook"), *words]
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
        return self.folder / "runs" / NAME / "latest/jobs" / name / "request.json"

    def run(self, name: str, request: Path) -> dict[str, tuple[int, str]]:
        """The exit code and the output of the container of each host."""
        root = self.folder / f"{NAME}-{name}"
        root.mkdir()
        env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "CONTAINERS_CONF": str(self.folder / "containers.conf")}
        argv = [str(self.bin / "python"), str(ROOT / "tests/support/sagemaker_local.py"), str(request), str(root)]
        done = subprocess.run(
            argv, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        found = self.engine.containers(f"io.podman.compose.project={root.name}")
        ended = {}
        for each in found:
            logs = self.engine.run(self.engine.argv("logs", each["Id"]))
            ended[each["Config"]["Labels"]["com.docker.compose.service"]] = (each["State"]["ExitCode"], logs.stdout + logs.stderr)
        return ended

    def forget(self) -> None:
        """Remove the containers, the network when nobody else uses it, and the image."""
        found = self.engine.ask("ps", "--all", "--format={{.ID}}", f"--filter=name={NAME}").split()
        if found:
            self.engine.change("rm", "--force", *found)
        self.engine.run(self.engine.argv("network", "rm", NETWORK))
        self.engine.run(self.engine.argv("rmi", "--force", IMAGE, trainer_image()))


@pytest.fixture(scope="module")
def local(artifacts) -> Iterator[Local]:
    engine = find_engine()
    if engine.name != "podman" or engine.prefix:
        pytest.exit("SageMaker's local mode is tried with podman as root alone.", returncode=75)
    folder = artifacts.folder(NAME)
    Fleet(NAME, engine, folder / "none", cache_dir(os.environ))  # finds out with which flags the engine works here
    made = Local(folder, engine)
    artifacts.leave(f"what SageMaker's local mode leaves, called {NETWORK}", made.forget)
    environment(os.environ)
    engine.change("load", "--input", str(trainer_archive(os.environ)))
    (folder / "image").mkdir()
    (folder / "image/Dockerfile").write_text(f"FROM {trainer_image()}\nRUN mkdir -p /var/cache && ln -s {SHARED} /var/cache/muster\n")
    limits = [f"--ulimit={name}={value}:{value}" for name, value in engine.ulimits.items()]
    engine.change("build", "--quiet", *limits, f"--tag={IMAGE}", str(folder / "image"))
    made.setup()
    yield made


def test_two_hosts_run_the_ranks_of_the_request(local: Local) -> None:
    request = local.render("sum", command=["python", "-c", SUM], procs_per_node=2)
    assert json.loads(request.read_text())["ResourceConfig"]["InstanceCount"] == 2
    ended = local.run("sum", request)
    said = "".join(each for _code, each in ended.values())
    found = [re.fullmatch(r"rank (\d) of 4 on (\S+) sum 4", line) for line in said.splitlines()]
    ranks = {int(each[1]): each[2] for each in found if each}
    assert sorted(ranks) == [0, 1, 2, 3], said[-3000:]
    assert ranks[0] == ranks[1] != ranks[2] == ranks[3]
    # Local mode ends all containers when the first has ended, so torchrun of the other one may not get to its own end.
    assert sorted(ended) == ["algo-1", "algo-2"] and 0 in {code for code, _said in ended.values()}
    assert all(code == 0 or "got signal: 15" in each for code, each in ended.values()), ended


def test_a_container_that_fails_is_seen_by_its_exit_code_alone(local: Local) -> None:
    ended = local.run("fail", local.render("fail", command=["python", "-c", FAIL]))
    assert 0 not in {code for code, _said in ended.values()}
    assert any(re.search(r"no data on [01]\n(.*\n)*.*failed \(exitcode: 9\)", said) for _code, said in ended.values()), ended
