# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Systems Manager: moto keeps the commands of Run Command, the machines run them; sessions of Session Manager are opened, listed and ended.

What a session carries goes by AWS's own protocol to its agent, which is not here: see CHANNEL in faults.py.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ssm.models import Command
from moto.ssm.responses import SimpleSystemManagerResponse

from localcloud.ec2 import THE, wrapped
from localcloud.faults import CHANNEL

MOST_OUTPUT = 24000


def install(machines: Any) -> None:
    """Once for a process; `machines` is the same as that of EC2."""
    THE["sessions"] = {}
    if THE.get("ssm"):
        return
    THE["ssm"] = True
    wrapped(Command, "_get_instance_ids_from_targets", named_alone)
    wrapped(Command, "__init__", run)
    for action in (describe_instance_information, start_session, describe_sessions, terminate_session):
        setattr(SimpleSystemManagerResponse, action.__name__, action)


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


def online(response: SimpleSystemManagerResponse) -> list[Any]:
    """The instances whose agent answers: those that run."""
    return [each for each in ec2_backends[response.current_account][response.region].all_running_instances() if not each.dead]


def describe_instance_information(response: SimpleSystemManagerResponse) -> str:
    """As the agents report it."""
    listed = [
        {
            "InstanceId": each.id,
            "PingStatus": "Online",
            "PlatformType": "Linux",
            "IPAddress": each.private_ip,
            "LastPingDateTime": utcnow().timestamp(),
        }
        for each in online(response)
    ]
    return json.dumps({"InstanceInformationList": listed})


def start_session(response: SimpleSystemManagerResponse) -> str:
    """A session with an instance whose agent answers, and the address of its data channel."""
    target = response._get_param("Target")
    if target not in {each.id for each in online(response)}:
        raise JsonRESTError("TargetNotConnected", f"{target} is not connected.")
    session = f"localcloud-{secrets.token_hex(9)}"
    document = response._get_param("DocumentName") or "SSM-SessionManagerRunShell"
    THE["sessions"][session] = {"SessionId": session, "Target": target, "DocumentName": document, "StartDate": utcnow().timestamp()}
    stream = f"ws://{response.parsed_url.netloc}{CHANNEL}{session}"
    return json.dumps({"SessionId": session, "TokenValue": secrets.token_urlsafe(32), "StreamUrl": stream})


def describe_sessions(response: SimpleSystemManagerResponse) -> str:
    """Those that are open, or those that were: a session ends with its instance."""
    running = {each.id for each in online(response)}
    for each in THE["sessions"].values():
        if each["Target"] not in running:
            each.setdefault("EndDate", utcnow().timestamp())
    active = response._get_param("State") == "Active"
    status = "Connected" if active else "Terminated"
    listed = [{**each, "Status": status} for each in THE["sessions"].values() if ("EndDate" not in each) == active]
    return json.dumps({"Sessions": listed})


def terminate_session(response: SimpleSystemManagerResponse) -> str:
    """End one; a second time is no error."""
    session = response._get_param("SessionId")
    if session not in THE["sessions"]:
        raise JsonRESTError("DoesNotExistException", f"Session {session} does not exist.")
    THE["sessions"][session].setdefault("EndDate", utcnow().timestamp())
    return json.dumps({"SessionId": session})
