# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A lab is sent to SageMaker (moto's): the code is uploaded and the job is there."""

from __future__ import annotations

import boto3
import pytest
from moto import mock_aws

from trainer.cli import LocalError
from trainer.labs import sagemaker

ROLE = "arn:aws:iam::123456789012:role/lab"


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@mock_aws
def test_the_job_is_created_with_its_code() -> None:
    boto3.client("s3").create_bucket(Bucket="labs")
    job = sagemaker.request("model_parallel", image="IMAGE", role=ROLE, bucket="labs", name="lab")
    assert sagemaker.send(job).endswith(":training-job/lab")
    made = boto3.client("sagemaker").describe_training_job(TrainingJobName="lab")
    assert made["ResourceConfig"]["InstanceType"] == "ml.g4dn.12xlarge"
    content = boto3.client("s3").get_object(Bucket="labs", Key="muster-labs/lab/trainer.tar.gz")["Body"].read()
    assert content[:2] == b"\x1f\x8b"


@mock_aws
def test_a_bucket_that_is_not_there_is_one_sentence() -> None:
    job = sagemaker.request("model_parallel", image="IMAGE", role=ROLE, bucket="none", name="lab")
    with pytest.raises(LocalError, match=r"the job was not created: .*NoSuchBucket"):
        sagemaker.send(job)
