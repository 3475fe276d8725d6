# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What moto's EC2 gets here: machines behind its instances, images behind its AMIs, and the calls and fields that it lacks or drops."""

from __future__ import annotations

import functools
import platform
from typing import Any

from moto.ec2.models.amis import AMIS, Ami, AmiBackend
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.responses import EC2Response

from localcloud.ec2 import amis, capacity, instances, launch
from localcloud.ec2.types import add_types
from localcloud.wrapping import CLOUD, wrapped


def install(machines: Any, faults: Any) -> None:
    """Change moto in place, once for a process. A later call only sets other machines and faults."""
    CLOUD["machines"], CLOUD["faults"] = machines, faults
    if CLOUD.get("ec2"):
        return
    CLOUD["ec2"] = True
    add_types()
    for ami in AMIS:
        ami["architecture"] = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    for each, name, wrapper in (
        (EC2Response, "_get_param", launch.get_param),
        (EC2Response, "run_instances", launch.run_instances),
        (EC2Response, "describe_instances", instances.after_a_look),
        (EC2Response, "describe_instance_status", instances.after_a_look),
        (EC2Response, "get_console_output", instances.get_console_output),
        (EC2Response, "copy_image", amis.copy_image_encrypted),
        (EC2Response, "modify_image_attribute", amis.modify_image_attribute),
        (InstanceBackend, "run_instances", launch.boot),
        (Instance, "prep_nics", launch.prep_nics),
        (Instance, "start", instances.start),
        (Instance, "stop", instances.stop),
        (Instance, "reboot", instances.reboot),
        (Instance, "terminate", instances.terminate),
        (Attachment, "__init__", launch.attached),
        (AmiBackend, "create_image", amis.create_image),
        (AmiBackend, "copy_image", amis.copy_image),
        (AmiBackend, "deregister_image", amis.deregister_image),
    ):
        wrapped(each, name, wrapper)
    # dead: the instance never boots. settled: the turn in which its machine came to rest, or 0; moto calls an instance running too early.
    # profile: moto's InstanceProfile.
    Instance.dead, Instance.settled, Instance.profile = False, 0, None  # type: ignore[attr-defined]
    mappings = Ami.block_device_mappings.fget
    Ami.block_device_mappings = property(lambda ami: amis.true_mappings(mappings(ami), ami))  # type: ignore[assignment]
    for status in ("instance_status", "system_status"):
        former = getattr(Instance, status).fget
        setattr(Instance, status, property(functools.partial(instances.true_status, former)))
    for action in (
        capacity.create_placement_group,
        capacity.describe_placement_groups,
        capacity.delete_placement_group,
        capacity.create_capacity_reservation,
        capacity.describe_capacity_reservations,
        capacity.cancel_capacity_reservation,
        capacity.describe_instance_topology,
        instances.create_replace_root_volume_task,
        instances.describe_replace_root_volume_tasks,
        amis.enable_image_deprecation,
        amis.disable_image_deprecation,
    ):
        setattr(EC2Response, action.__name__, action)
