# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""publish.py RESULTS PURPOSE ENGINE PREFIX [REPOSITORY]: gives a container image its names, and puts it into ECR.

RESULTS is the folder with packer.json, manifest.json and stack_facts.json, PREFIX is what stands before the names here. REPOSITORY, such as
123456789012.dkr.ecr.us-east-1.amazonaws.com/team, is made for each name where it is missing, and scans what is pushed.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path


class PublishError(Exception):
    """One sentence for the user."""


def image_names(purpose: str, versions: dict[str, str]) -> list[str]:
    """NAME:TAG of an image of this purpose with these versions of components, the first one being its own."""

    def version(name: str) -> str:
        if name not in versions:
            raise PublishError(f"The image has no {name}, of which a tag of {purpose} tells the version; name it in components.")
        return versions[name]

    if purpose == "slurm-node":
        return [f"slurm-node:slurm{version('slurm')}"]
    # Without AWS's installer libfabric is the system's, and without libfabric there is no plugin.
    efa, plugin = versions.get("efa", "0"), versions.get("aws_ofi_nccl", "0")
    tag = f"cuda{version('cuda')}-efa{efa}-ofi{plugin}-nccl{version('nccl')}-tests{version('nccl_tests')}"
    if purpose == "trainer":
        return [f"trainer:pytorch{version('trainer')}-{tag}", f"fsdp:pytorch{version('trainer')}"]
    return [f"{purpose}:{tag}"]


def read_versions(results: Path) -> dict[str, str]:
    """Component to version: what Muster installed by its manifest, and what else was found, as the base may have brought it."""
    found = json.loads((results / "stack_facts.json").read_text())["image"]
    components = json.loads((results / "manifest.json").read_text())["components"]
    return {
        **{name: each["version"] for name, each in components.items() if each["version"]},
        **{name: each["version"] for name, each in found.items()},
    }


def read_image(results: Path) -> str:
    """The id of the image of the last build."""
    packer = json.loads((results / "packer.json").read_text())
    return [each["artifact_id"] for each in packer["builds"] if each["packer_run_uuid"] == packer["last_run_uuid"]][-1]


def have_repository(ecr, name: str) -> bool:
    """Make the repository unless it is there; whether that was needed."""
    try:
        ecr.describe_repositories(repositoryNames=[name])
    except ecr.exceptions.RepositoryNotFoundException:
        ecr.create_repository(repositoryName=name, imageScanningConfiguration={"scanOnPush": True})
        return True
    return False


def call(argv: list[str], said: str = "") -> None:
    """Run the engine; what it is told by its standard input is in no list of processes."""
    done = subprocess.run(argv, input=said, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise PublishError(f"{' '.join(argv[:2])} failed for {argv[-1]}: {reason[-1] if reason else done.returncode}")


def push(engine: str, image: str, names: list[str], repository: str) -> list[str]:
    """Push the image under its names; return them whole."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise PublishError("boto3 is missing, by which ECR is asked; install it for the python3 on PATH.") from error
    registry, _, folder = repository.partition("/")
    account, region = registry.split(".")[0], registry.split(".")[3]
    try:
        ecr = boto3.client("ecr", region_name=region)
        for name in names:
            have_repository(ecr, f"{folder}/{name}".lstrip("/").split(":")[0])
        token = ecr.get_authorization_token(registryIds=[account])["authorizationData"][0]["authorizationToken"]
    except (BotoCoreError, ClientError) as error:
        raise PublishError(
            f"{image} is made and could not be pushed to {repository} ({error}); run packer/containers/publish.py again."
        ) from error
    user, _, password = base64.b64decode(token).decode().partition(":")
    call([engine, "login", "--username", user, "--password-stdin", registry], password)
    whole = [f"{repository}/{name}" for name in names]
    for each in whole:
        call([engine, "tag", image, each])
        call([engine, "push", each])
    return whole


def main(argv: list[str]) -> int:
    results, (purpose, engine, prefix), repository = Path(argv[0]), argv[1:4], argv[4] if len(argv) > 4 else ""
    try:
        image, names = read_image(results), image_names(purpose, read_versions(results))
        here = [f"{prefix}/{name}" for name in names]
        for each in here:
            call([engine, "tag", image, each])
        for each in here + (push(engine, image, names, repository) if repository else []):
            print(each)
    except PublishError as error:
        print(f"publish.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
