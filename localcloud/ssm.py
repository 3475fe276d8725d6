# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Run Command of Systems Manager: moto keeps the commands, the machines run them."""

from __future__ import annotations

import json
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ssm.models import Command
from moto.ssm.responses import SimpleSystemManagerResponse

from localcloud.ec2 import THE, wrapped

MOST_OUTPUT = 24000


def install(machines: Any) -> None:
    """Once for a process; `machines` is the same as that of EC2."""
    if THE.get("ssm"):
        return
    THE["ssm"] = True
    wrapped(Command, "_get_instance_ids_from_targets", named_alone)
    wrapped(Command, "__init__", run)
    SimpleSystemManagerResponse.describe_instance_information = describe_instance_information


def named_alone(former: Any, command: Command) -> list[str]:
    """moto takes no targets for all instances of the region."""
    return former(command) if command.targets else []


def run(former: Any, command: Command, *args: Any, **kwargs: Any) -> None:
    """Run it on its instances before the answer."""
    former(command, *args, **kwargs)
    script = "\n".join(command.parameters.get("commands", []))
    timeout = float(command.parameters.get("executionTimeout", ["3600"])[0])
    for invocation in command.invocations:
        done = THE["machines"].run(invocation["InstanceId"], script, timeout)
        status = "Success" if done.code == 0 else "TimedOut" if done.code == 124 else "Failed"
        invocation.update(
            Status=status,
            StatusDetails=status,
            ResponseCode=done.code,
            StandardOutputContent=done.stdout[:MOST_OUTPUT],
            StandardErrorContent=done.stderr[:MOST_OUTPUT],
        )


def describe_instance_information(response: SimpleSystemManagerResponse) -> str:
    """The instances whose agent answers: those that run."""
    backend = ec2_backends[response.current_account][response.region]
    online = [
        {
            "InstanceId": each.id,
            "PingStatus": "Online",
            "PlatformType": "Linux",
            "IPAddress": each.private_ip,
            "LastPingDateTime": utcnow().timestamp(),
        }
        for each in backend.all_running_instances()
    ]
    return json.dumps({"InstanceInformationList": online})
