# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A lesson as a SageMaker training job: shows the request, and sends it with --send, which needs boto3.

python -m trainer.labs.sagemaker data_parallel --image IMAGE --role ROLE --bucket BUCKET [--send]
"""

import argparse
import io
import json
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import POSITIVE, LocalError, Parser, UsageError, nearest
from trainer.devices import DEVICES
from trainer.labs.notebooks import LESSONS
from trainer.launch import answer

TRAINER = Path(__file__).parents[1]
PREFIX = "muster-labs"
CODE = "/opt/ml/input/data/code"


def request(
    lesson: str,
    *,
    image: str,
    role: str,
    bucket: str,
    name: str,
    instance_type: str = "ml.g4dn.12xlarge",
    count: int = 1,
    minutes: int = 20,
) -> dict[str, Any]:
    """The request for CreateTrainingJob. The trainer's files are an input channel; each host starts one rank a GPU."""
    gpus = DEVICES["types"].get(instance_type.removeprefix("ml."), {}).get("devices", 1)
    hosts = "import json; c = json.load(open('/opt/ml/input/config/resourceconfig.json')); h = sorted(c['hosts'])"
    where = f'{hosts}; print(len(h), h.index(c["current_host"]), h[0])'
    start = (
        f"mkdir /tmp/lab && tar -xzf {CODE}/trainer.tar.gz -C /tmp/lab && cd /tmp/lab && "
        f"read -r hosts host first <<< \"$(python3 -c '{where.replace(chr(39), chr(34))}')\" && "
        f"torchrun --nnodes $hosts --node-rank $host --master-addr $first --master-port 29500 "
        f"--nproc-per-node {gpus} -m trainer.labs.{lesson}"
    )
    return {
        "TrainingJobName": name,
        "RoleArn": role,
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash", "-c"],
            "ContainerArguments": [start],
        },
        "InputDataConfig": [
            {
                "ChannelName": "code",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"s3://{bucket}/{PREFIX}/{name}/",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}/{PREFIX}/{name}/output"},
        "ResourceConfig": {"InstanceType": instance_type, "InstanceCount": count, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 1200},
    }


def package() -> bytes:
    """The trainer without its tests as a tar.gz."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in sorted([*TRAINER.rglob("*.py"), TRAINER / "devices.json"]):
            if TRAINER / "tests" not in path.parents:
                archive.add(path, arcname=f"trainer/{path.relative_to(TRAINER)}")
    return content.getvalue()


def send(asked: dict[str, Any]) -> str:
    """Upload the trainer and create the job; its ARN. Raises LocalError."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError:
        raise LocalError("boto3 is not installed: `pip install boto3`, or leave --send out") from None
    url = asked["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    bucket, _, key = url.removeprefix("s3://").partition("/")
    try:
        boto3.client("s3").put_object(Bucket=bucket, Key=f"{key}trainer.tar.gz", Body=package())
        return str(boto3.client("sagemaker").create_training_job(**asked)["TrainingJobArn"])
    except (BotoCoreError, ClientError) as error:
        raise LocalError(f"the job was not created: {error}") from None


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m trainer.labs.sagemaker", description="A lesson as a SageMaker training job.")
    parser.add_argument("lesson", choices=LESSONS, help="which lesson")
    parser.add_argument("--image", required=True, help="training container with torch 2.11 or later")
    parser.add_argument("--role", required=True, help="ARN of the role that the job runs as")
    parser.add_argument("--bucket", required=True, help="S3 bucket for the code and the output")
    parser.add_argument("--instance_type", default="ml.g4dn.12xlarge", help="instance type")
    parser.add_argument("--instance_count", type=POSITIVE, default=1, help="number of instances")
    parser.add_argument("--send", action="store_true", help="create the job, which costs money, instead of showing it")
    asked: argparse.Namespace = parser.parse(argv)
    kind = asked.instance_type.removeprefix("ml.")
    if not asked.instance_type.startswith("ml.") or kind not in DEVICES["types"]:
        hint = nearest(asked.instance_type, [f"ml.{name}" for name in DEVICES["types"]])
        raise UsageError(f"unknown instance type '{asked.instance_type}': {hint or 'write one such as ml.g4dn.12xlarge'}")
    name = f"muster-lab-{asked.lesson.replace('_', '-')}-{int(time.time())}"
    job = request(
        asked.lesson,
        image=asked.image,
        role=asked.role,
        bucket=asked.bucket,
        name=name,
        instance_type=asked.instance_type,
        count=asked.instance_count,
    )
    print(send(job) if asked.send else json.dumps(job, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(answer(main, sys.argv[1:]))
