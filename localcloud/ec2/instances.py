# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Instances and their machines: start, stop, reboot, terminate, status, console output and a new root volume."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidAMIIdError
from moto.ec2.models.instances import Instance, InstanceState, StateReason
from moto.ec2.responses import EC2Response

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.ec2.launch import TURNS, first_boot
from localcloud.wrapping import CLOUD, kept, made_id

# Podman reports stopped until it has cleaned up, and exited afterwards.
ENDED = ("exited", "stopped")
HOST_FAILED = ("Server.InternalError", "Server.InternalError: the host of the instance failed")


def start(former: Callable, instance: Instance) -> InstanceState:
    if instance.state == "stopped":
        CLOUD["machines"].resume(instance.id)
    before = former(instance)
    instance.nics[0].public_ip = None
    return before


def stop(former: Callable, instance: Instance) -> InstanceState:
    if instance.state == "running" and not instance.dead:  # type: ignore[attr-defined]
        with unsettled(instance):
            CLOUD["machines"].stop(instance.id)
            return former(instance)
    return former(instance)


def reboot(former: Callable, instance: Instance) -> None:
    if instance.state == "running" and not instance.dead:  # type: ignore[attr-defined]
        with unsettled(instance):
            CLOUD["machines"].stop(instance.id)
            CLOUD["machines"].resume(instance.id)
    former(instance)


@contextlib.contextmanager
def unsettled(instance: Instance) -> Iterator[None]:
    """Mark an instance whose machine is stopping or away, so that `after_a_look` ignores its state, also when that look began before."""
    instance.settled = 0  # type: ignore[attr-defined]
    try:
        yield
    finally:
        instance.settled = next(TURNS)  # type: ignore[attr-defined]


def terminate(former: Callable, instance: Instance) -> InstanceState:
    if instance.state == "terminated":
        return InstanceState("terminated", 48)
    with unsettled(instance):
        if not instance.dead:  # type: ignore[attr-defined]
            CLOUD["machines"].remove(instance.id)
        return former(instance)


def after_a_look(former: Callable, response: EC2Response) -> ActionResult:
    """Let instances follow their machines, which may be switched off from inside or lost with their host."""
    running = {each: each.settled for each in response.ec2_backend.all_running_instances() if each.settled}
    states = CLOUD["machines"].states() if running else {}
    for instance, settled in running.items():
        state = states.get(instance.id, "lost")
        changed = instance.settled != settled or instance.state != "running"
        if changed or state not in (*ENDED, "lost"):
            continue
        if state in ENDED and not CLOUD["machines"].was_killed(instance.id):
            by_itself = StateReason("Client.InstanceInitiatedShutdown: Instance initiated shutdown", "Client.InstanceInitiatedShutdown")
            if instance.instance_initiated_shutdown_behavior == "terminate":
                instance.terminate()
            else:
                instance._state = InstanceState("stopped", 80)
            instance.state_reason = by_itself
        else:
            instance.terminate()
            instance.state_reason = StateReason(HOST_FAILED[1], HOST_FAILED[0])
    return former(response)


def true_status(former: Callable, instance: Instance) -> dict[str, Any]:
    """An instance that never booted is impaired."""
    status = former(instance)
    if instance.dead and instance.state == "running":  # type: ignore[attr-defined]
        return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}
    return status


def get_console_output(_former: Callable, response: EC2Response) -> ActionResult:
    instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
    said = CLOUD["machines"].journal(instance.id) if instance.state == "running" and not instance.dead else ""
    result = {"InstanceId": instance.id, "Timestamp": utcnow(), "Output": Base64EncodedString.from_raw_string(said[-65536:])}
    return ActionResult(result)


def create_replace_root_volume_task(response: EC2Response) -> ActionResult:
    """Make a machine again from an AMI (default: its own). Name and address stay. The task is complete when the call returns."""
    ask, backend = response._get_param, response.ec2_backend
    tasks, token = kept(backend, "root_tasks"), ask("ClientToken")
    known = [each for each in list(tasks.values()) if token and each["ClientToken"] == token]
    if known:
        return ActionResult({"ReplaceRootVolumeTask": known[0]})
    instance = backend.get_instance(ask("InstanceId"))
    if instance.state != "running":
        raise EC2ClientError("IncorrectInstanceState", f"The instance '{instance.id}' is not in the 'running' state.")
    image = ask("ImageId") or instance.image_id
    if image not in backend.amis:
        raise InvalidAMIIdError([image])
    made = made_id("replacevol", instance.id, len(tasks))
    task = {"ReplaceRootVolumeTaskId": made, "InstanceId": instance.id, "ImageId": image, "ClientToken": token, "StartTime": stamp()}
    # A client that asks again with its token is told of the task that still runs.
    task["TaskState"] = "in-progress"
    tasks[made] = task
    try:
        with unsettled(instance):
            CLOUD["machines"].replace(instance.id, image, *first_boot(instance))
        task["TaskState"] = "succeeded"
    except (NodeContainerError, RuntimeError, OSError) as error:
        # EC2's answer has no field for the reason, so print it where the cloud runs.
        print(f"localcloud: {made}: {error}", file=sys.stderr)
        task["TaskState"] = "failed"
    task["CompleteTime"] = stamp()
    return ActionResult({"ReplaceRootVolumeTask": task})


def stamp() -> str:
    return utcnow().strftime("%Y-%m-%dT%H:%M:%SZ")


def describe_replace_root_volume_tasks(response: EC2Response) -> ActionResult:
    tasks, wanted = kept(response.ec2_backend, "root_tasks"), response._get_param("ReplaceRootVolumeTaskIds") or []
    unknown = [each for each in wanted if each not in tasks]
    if unknown:
        raise EC2ClientError("InvalidReplaceRootVolumeTaskID.NotFound", f"The task ID '{unknown[0]}' does not exist")
    of = {value for each in response._get_param("Filters") or [] if each["Name"] == "instance-id" for value in each["Values"]}
    shown = [each for made, each in tasks.items() if (not wanted or made in wanted) and (not of or each["InstanceId"] in of)]
    return ActionResult({"ReplaceRootVolumeTasks": shown})
