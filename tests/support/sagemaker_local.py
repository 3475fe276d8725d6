# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Runs a request of CreateTrainingJob by the local mode of SageMaker's SDK: sagemaker_local.py REQUEST FOLDER

Only the environment of requirements/sagemaker-local.txt can run it. docker and docker-compose in PATH start the containers. Local mode says
to nobody how they ended, so whoever calls this has to ask the engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def channel(given: dict[str, Any]) -> dict[str, Any]:
    """An input channel of a file system, as local mode takes it: its path is one of this machine, and EFS the only type that it knows."""
    source = given["DataSource"]["FileSystemDataSource"]
    return {
        "channel_name": given["ChannelName"],
        "data_source": {
            "file_system_data_source": {
                "file_system_id": source["FileSystemId"],
                "file_system_access_mode": source["FileSystemAccessMode"],
                "file_system_type": "EFS",
                "directory_path": source["DirectoryPath"],
            }
        },
    }


def main(request: str, folder: str) -> None:
    from sagemaker.core.shapes import Channel
    from sagemaker.train.local.local_container import _LocalContainer

    given = json.loads(Path(request).read_text(encoding="utf-8"))
    algorithm, resources = given["AlgorithmSpecification"], given["ResourceConfig"]
    _LocalContainer(
        training_job_name=given["TrainingJobName"],
        instance_type="local_cpu",
        instance_count=resources["InstanceCount"],
        image=algorithm["TrainingImage"],
        container_root=folder,
        input_data_config=[Channel(**channel(each)) for each in given.get("InputDataConfig", ())],
        environment=given["Environment"],
        hyper_parameters=given["HyperParameters"],
        container_entrypoint=algorithm["ContainerEntrypoint"],
        container_arguments=algorithm["ContainerArguments"],
    ).train(wait=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
