# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Systems Manager: moto stores the commands of Run Command and the machines run them. Sessions are opened, listed and ended.

Sessions carry no data: AWS's own protocol needs the SSM agent, which the machines lack. See CHANNEL in faults.py.
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

from localcloud.faults import CHANNEL
from localcloud.wrapping import CLOUD, wrapped

MOST_OUTPUT = 24000


def install() -> None:
    """Change moto in place, once for a process, after `ec2.install`."""
    CLOUD["sessions"] = {}
    if CLOUD.get("ssm"):
        return
    CLOUD["ssm"] = True
    wrapped(Command, "_get_instance_ids_from_targets", named_alone)
    wrapped(Command, "__init__", run)
    for action in (describe_instance_information, start_session, describe_sessions, terminate_session):
        setattr(SimpleSystemManagerResponse, action.__name__, action)


def named_alone(former: Any, command: Command) -> list[str]:
    """Without targets moto would choose all instances of the region."""
    return former(command) if command.targets else []


def run(former: Any, command: Command, *args: Any, **kwargs: Any) -> None:
    """Run the command on its instances before the call returns."""
    former(command, *args, **kwargs)
    lost = sorted(
        {*command.instance_ids} - {each.id for each in ec2_backends[command.account_id][command.backend_region].all_running_instances()}
    )
    if lost:
        raise JsonRESTError("InvalidInstanceId", f"Instances [[{', '.join(lost)}]] not in a valid state for account {command.account_id}")
    script = "\n".join(command.parameters.get("commands", []))
    timeout = float(command.parameters.get("executionTimeout", ["3600"])[0])
    for invocation in command.invocations:
        done = CLOUD["machines"].run(invocation["InstanceId"], script, timeout)
        status = "Success" if done.code == 0 else "TimedOut" if done.code == 124 else "Failed"
        invocation.update(
            Status=status,
            StatusDetails=status,
            ResponseCode=done.code,
            StandardOutputContent=done.stdout[:MOST_OUTPUT],
            StandardErrorContent=done.stderr[:MOST_OUTPUT],
        )


def online(response: SimpleSystemManagerResponse) -> list[Any]:
    """The running instances, whose agents would answer."""
    return [each for each in ec2_backends[response.current_account][response.region].all_running_instances() if not each.dead]


def describe_instance_information(response: SimpleSystemManagerResponse) -> str:
    """What the agents of the running instances would report."""
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
    """Open a session with a running instance, and return the address of its data channel."""
    target = response._get_param("Target")
    if target not in {each.id for each in online(response)}:
        raise JsonRESTError("TargetNotConnected", f"{target} is not connected.")
    session = f"localcloud-{secrets.token_hex(9)}"
    document = response._get_param("DocumentName") or "SSM-SessionManagerRunShell"
    CLOUD["sessions"][session] = {"SessionId": session, "Target": target, "DocumentName": document, "StartDate": utcnow().timestamp()}
    stream = f"ws://{response.parsed_url.netloc}{CHANNEL}{session}"
    return json.dumps({"SessionId": session, "TokenValue": secrets.token_urlsafe(32), "StreamUrl": stream})


def describe_sessions(response: SimpleSystemManagerResponse) -> str:
    """The sessions that are open, or those that have ended; a session ends with its instance."""
    running = {each.id for each in online(response)}
    for each in CLOUD["sessions"].values():
        if each["Target"] not in running:
            each.setdefault("EndDate", utcnow().timestamp())
    active = response._get_param("State") == "Active"
    status = "Connected" if active else "Terminated"
    listed = [{**each, "Status": status} for each in CLOUD["sessions"].values() if ("EndDate" not in each) == active]
    return json.dumps({"Sessions": listed})


def terminate_session(response: SimpleSystemManagerResponse) -> str:
    """End a session; ending it twice is no error."""
    session = response._get_param("SessionId")
    if session not in CLOUD["sessions"]:
        raise JsonRESTError("DoesNotExistException", f"Session {session} does not exist.")
    CLOUD["sessions"][session].setdefault("EndDate", utcnow().timestamp())
    return json.dumps({"SessionId": session})
