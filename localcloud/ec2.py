# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What moto's EC2 gets here: machines behind its instances, images behind its AMIs, and the calls and fields that it lacks or drops.

moto has no place to hang such things, so its functions are wrapped: each wrapper gets the former function first.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidAMIIdError, InvalidKeyPairNameError
from moto.ec2.models.amis import AMIS, Ami, AmiBackend
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instance_types import INSTANCE_TYPES, InstanceType, InstanceTypeBackend
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, StateReason
from moto.ec2.responses import EC2Response

from ansible_collections.muster.fleet.plugins.module_utils.catalogue import instance_type, names
from ansible_collections.muster.fleet.plugins.module_utils.container_engine import NodeContainerError

# The machines and faults of this process's cloud.
THE: dict[str, Any] = {}
# podman says stopped before it has cleaned up and exited after it.
ENDED = ("exited", "stopped")
# Each time a machine comes to rest has a number, by which a look knows whether it was changed since the look began.
TURNS = itertools.count(1)
HOST_FAILED = ("Server.InternalError", "Server.InternalError: the host of the instance failed")


def install(machines: Any, faults: Any) -> None:
    """Once for a process: moto is changed in place. Later calls only exchange what is behind it."""
    THE["machines"], THE["faults"] = machines, faults
    if THE.get("ec2"):
        return
    THE["ec2"] = True
    add_types()
    for ami in AMIS:
        ami["architecture"] = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    for each, name, wrapper in (
        (EC2Response, "_get_param", get_param),
        (EC2Response, "run_instances", run_instances),
        (EC2Response, "describe_instances", after_a_look),
        (EC2Response, "describe_instance_status", after_a_look),
        (EC2Response, "get_console_output", get_console_output),
        (EC2Response, "copy_image", copy_image_encrypted),
        (EC2Response, "modify_image_attribute", modify_image_attribute),
        (InstanceBackend, "run_instances", boot),
        (Instance, "prep_nics", prep_nics),
        (Instance, "start", start),
        (Instance, "stop", stop),
        (Instance, "reboot", reboot),
        (Instance, "terminate", terminate),
        (Attachment, "__init__", attached),
        (AmiBackend, "create_image", create_image),
        (AmiBackend, "copy_image", copy_image),
        (AmiBackend, "deregister_image", deregister_image),
    ):
        wrapped(each, name, wrapper)
    # Whether it never boots; the turn in which its machine came to rest, 0 before: moto calls an instance running too early.
    Instance.dead, Instance.settled = False, 0  # type: ignore[attr-defined]
    mappings = Ami.block_device_mappings.fget
    Ami.block_device_mappings = property(lambda ami: encrypted_mappings(mappings(ami), ami))  # type: ignore[assignment]
    for status in ("instance_status", "system_status"):
        former = getattr(Instance, status).fget
        setattr(Instance, status, property(functools.partial(true_status, former)))
    for action in (
        create_placement_group,
        describe_placement_groups,
        delete_placement_group,
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
        describe_instance_topology,
        create_replace_root_volume_task,
        describe_replace_root_volume_tasks,
        enable_image_deprecation,
        disable_image_deprecation,
    ):
        setattr(EC2Response, action.__name__, action)


def wrapped(owner: type, name: str, wrapper: Callable) -> None:
    """Replace a function by one that is given the former first."""
    former = getattr(owner, name)

    @functools.wraps(former)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(former, *args, **kwargs)

    setattr(owner, name, call)


# Instance types.


def add_types() -> None:
    """What the catalogue has and moto's copy of DescribeInstanceTypes has not."""
    for name in names():
        if name not in INSTANCE_TYPES:
            INSTANCE_TYPES[name] = described(instance_type(name))
            InstanceTypeBackend.instance_types.append(InstanceType(name))


def described(have: dict[str, Any]) -> dict[str, Any]:
    """A type of the catalogue as DescribeInstanceTypes says it."""
    cards = [
        {
            "NetworkCardIndex": card["card"],
            "MaximumNetworkInterfaces": card["max_interfaces"],
            "NetworkPerformance": f"{card['gbps']} Gigabit",
            "BaselineBandwidthInGbps": float(card["gbps"]),
            "PeakBandwidthInGbps": float(card["gbps"]),
            "InterfaceTypes": ["interface", *(["efa", "efa-only"] if card["efa"] else [])],
        }
        for card in have["network_cards"]
    ]
    device = {"Count": have["gpus"], "Name": have["gpu_model"], "MemoryInfo": {"SizeInMiB": have["gpu_memory_mib"]}}
    total = have["gpus"] * have["gpu_memory_mib"]
    out = {
        "InstanceType": have["name"],
        "CurrentGeneration": True,
        "BareMetal": have["bare_metal"],
        "Hypervisor": "nitro",
        "SupportedUsageClasses": list(have["markets"]),
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "SupportedBootModes": ["legacy-bios", "uefi"] if have["boot_mode"] == "both" else [have["boot_mode"]],
        "ProcessorInfo": {"SupportedArchitectures": [have["arch"]], "Manufacturer": have["cpu"]},
        "VCpuInfo": {
            "DefaultVCpus": have["vcpus"],
            "DefaultCores": have["cores"],
            "DefaultThreadsPerCore": have["threads_per_core"],
        },
        "MemoryInfo": {"SizeInMiB": have["memory_mib"]},
        "NetworkInfo": {
            "MaximumNetworkCards": len(cards),
            "MaximumNetworkInterfaces": sum(card["MaximumNetworkInterfaces"] for card in cards),
            "DefaultNetworkCardIndex": 0,
            "NetworkCards": cards,
            "EfaSupported": bool(have["efa"]),
            "EfaInfo": {"MaximumEfaInterfaces": sum(card["efa"] for card in have["network_cards"])},
            "EnaSupport": "required",
        },
        "InstanceStorageSupported": have["nvme_total_gb"] > 0,
        "InstanceStorageInfo": {
            "TotalSizeInGB": have["nvme_total_gb"],
            "Disks": [{"Count": have["nvme"]["count"], "SizeInGB": have["nvme"]["size_gb"], "Type": "ssd"}],
        },
    }
    if have["accelerator"] == "nvidia":
        out["GpuInfo"] = {"Gpus": [{**device, "Manufacturer": "NVIDIA"}], "TotalGpuMemoryInMiB": total}
    else:
        out["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": total}
    return out


# Instances.


def get_param(former: Callable, response: EC2Response, name: str, *args: Any, **kwargs: Any) -> Any:
    """What run_instances below has found out comes before what the request says."""
    found = getattr(response, "_localcloud", {})
    return found[name] if name in found else former(response, name, *args, **kwargs)


def run_instances(former: Callable, response: EC2Response) -> ActionResult:
    """With everything that a launch template or request says; the same ClientToken starts nothing again."""
    ask, backend = response._get_param, response.ec2_backend
    token = ask("ClientToken")
    known = backend.__dict__.setdefault("_localcloud_tokens", {})
    if token in known:
        return ActionResult(known[token])
    template = backend._get_template_from_args(ask("LaunchTemplate")).data if ask("LaunchTemplate") else {}
    check_request(response, template)
    found: dict[str, Any] = {"MinCount": ask("MaxCount") or ask("MinCount", 1)}
    interfaces = [dict(each) for each in template.get("NetworkInterfaces") or ()]
    if interfaces and not ask("NetworkInterfaces"):
        if subnet := ask("SubnetId"):
            interfaces = [{"SubnetId": subnet, **each} for each in interfaces]
        found |= {"NetworkInterfaces": interfaces, "SubnetId": None}
    placement = {**template.get("Placement", {}), **(ask("Placement") or {})}
    if zone := placement.get("AvailabilityZone"):
        found["Placement.AvailabilityZone"] = zone
    group = placement.get("GroupName")
    if group and group not in kept(backend, "groups"):
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
    specification = ask("CapacityReservationSpecification") or template.get("CapacityReservationSpecification") or {}
    reservation = (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    if reservation:
        take_capacity(response, reservation, int(found["MinCount"]))
    found["MetadataOptions"] = {**template.get("MetadataOptions", {}), **(ask("MetadataOptions") or {})}
    response._localcloud = found  # type: ignore[attr-defined]
    answer = former(response)
    unknown = unknown_key(response, [*(template.get("BlockDeviceMappings") or ()), *(ask("BlockDeviceMappings") or ())])
    for instance in answer.result.instances:
        if unknown:
            # As AWS does: the request is taken, and what it started ends.
            instance.terminate()
            instance.state_reason = StateReason(f"Client.InvalidKMSKey.InvalidState: {unknown}", "Client.InvalidKMSKey.InvalidState")
        instance.placement.group_name = group or ""
        instance.capacity_reservation_id = reservation
        instance.capacity_reservation_specification = specification or None
    if token:
        known[token] = answer.result
    return answer


def check_request(response: EC2Response, template: dict[str, Any]) -> None:
    """moto starts what AWS would refuse."""
    ask, backend = response._get_param, response.ec2_backend
    image, key = ask("ImageId") or template.get("ImageId"), ask("KeyName") or template.get("KeyName")
    kind = ask("InstanceType") or template.get("InstanceType")
    if not image:
        raise EC2ClientError("MissingParameter", "The request must contain the parameter ImageId")
    if image not in backend.amis:
        raise InvalidAMIIdError([image])
    if kind and kind not in INSTANCE_TYPES:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if key and key not in [each.key_name for each in backend.key_pairs.values()]:
        raise InvalidKeyPairNameError({key})


def prep_nics(former: Callable, instance: Instance, nic_spec: list[dict[str, Any]], **kwargs: Any) -> None:
    """moto keeps interfaces by DeviceIndex, which many cards of one instance share."""
    asked = [dict(each) for each in nic_spec]
    former(instance, [{**each, "DeviceIndex": place} for place, each in enumerate(asked)], **kwargs)
    for place, each in enumerate(asked):
        nic = instance.nics[place]
        nic.interface_type = each.get("InterfaceType") or "interface"
        nic.device_index = int(each.get("DeviceIndex", 0))
        nic.network_card = int(each.get("NetworkCardIndex", 0))


def attached(former: Callable, attachment: Attachment, nic: Any) -> None:
    former(attachment, nic)
    attachment.network_card_index = getattr(nic, "network_card", 0)


def boot(former: Callable, backend: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
    """A machine for each new instance, side by side. When one cannot be had, none is kept."""
    reservation = former(backend, *args, **kwargs)
    with ThreadPoolExecutor(4) as pool:
        problems = [each for each in pool.map(boot_one, reservation.instances) if each]
    if problems:
        for instance in reservation.instances:
            instance.terminate()
        raise EC2ClientError("InsufficientInstanceCapacity", problems[0])
    return reservation


def boot_one(instance: Instance) -> str:
    """Start its machine; the reason why not, or ""."""
    instance.dead = THE["faults"].take(boots=False) is not None  # type: ignore[attr-defined]
    nic = instance.nics[0]
    nic.public_ip_auto_assign, nic.public_ip = False, None
    if instance.dead:  # type: ignore[attr-defined]
        return ""
    try:
        address = THE["machines"].start(instance.id, instance.image_id, *first_boot(instance))
    except (NodeContainerError, RuntimeError) as error:
        return str(error)
    nic.private_ip_address = address
    nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    instance.settled = next(TURNS)  # type: ignore[attr-defined]
    return ""


def first_boot(instance: Instance) -> tuple[str, bytes]:
    """What cloud-init finds: the public key and the user data."""
    keys = [each.public_key for each in instance.ec2_backend.key_pairs.values() if each.key_name == instance.key_name]
    data = base64.b64decode(str(instance.user_data)) if instance.user_data else b""
    return "".join(f"{each.strip()}\n" for each in keys), data


def start(former: Callable, instance: Instance) -> InstanceState:
    if instance.state == "stopped":
        THE["machines"].resume(instance.id)
    before = former(instance)
    instance.nics[0].public_ip = None
    return before


def stop(former: Callable, instance: Instance) -> InstanceState:
    if instance.state == "running" and not instance.dead:  # type: ignore[attr-defined]
        with unsettled(instance):
            THE["machines"].stop(instance.id)
            return former(instance)
    return former(instance)


def reboot(former: Callable, instance: Instance) -> None:
    if instance.state == "running" and not instance.dead:  # type: ignore[attr-defined]
        with unsettled(instance):
            THE["machines"].stop(instance.id)
            THE["machines"].resume(instance.id)
    former(instance)


@contextlib.contextmanager
def unsettled(instance: Instance) -> Iterator[None]:
    """While its machine goes, or is away for a moment, a look at it says nothing; nor does one that began before."""
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
            THE["machines"].remove(instance.id)
        return former(instance)


def after_a_look(former: Callable, response: EC2Response) -> ActionResult:
    """Instances are what their machines are: switched off from inside, or lost with their host."""
    running = {each: each.settled for each in response.ec2_backend.all_running_instances() if each.settled}
    states = THE["machines"].states() if running else {}
    for instance, settled in running.items():
        state = states.get(instance.id, "lost")
        changed = instance.settled != settled or instance.state != "running"
        if changed or state not in (*ENDED, "lost"):
            continue
        if state in ENDED and not THE["machines"].was_killed(instance.id):
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
    """One that never booted cannot be reached."""
    status = former(instance)
    if instance.dead and instance.state == "running":  # type: ignore[attr-defined]
        return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}
    return status


def get_console_output(_former: Callable, response: EC2Response) -> ActionResult:
    instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
    said = THE["machines"].journal(instance.id) if instance.state == "running" and not instance.dead else ""
    result = {"InstanceId": instance.id, "Timestamp": utcnow(), "Output": Base64EncodedString.from_raw_string(said[-65536:])}
    return ActionResult(result)


def create_replace_root_volume_task(response: EC2Response) -> ActionResult:
    """A machine anew from an AMI, without one from the AMI that it came from; name and address stay. It is done when this returns."""
    ask, backend = response._get_param, response.ec2_backend
    tasks, token = kept(backend, "root_tasks"), ask("ClientToken")
    known = [each for each in tasks.values() if token and each["ClientToken"] == token]
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
    tasks[made] = task
    try:
        with unsettled(instance):
            THE["machines"].replace(instance.id, image, *first_boot(instance))
        task["TaskState"] = "succeeded"
    except (NodeContainerError, RuntimeError) as error:
        # As in EC2 the answer has no reason: it is said where the cloud runs.
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


# AMIs.


def create_image(
    former: Callable, backend: AmiBackend, instance_id: str, name: str, *description: str, tag_specifications: list[dict[str, Any]]
) -> Ami:
    refuse_twice(backend, name)
    of_snapshot = [each for each in tag_specifications if each["ResourceType"] == "snapshot"]
    ami = former(
        backend, instance_id, name, *description, tag_specifications=[each for each in tag_specifications if each not in of_snapshot]
    )
    ami.root_device_type = "ebs"
    for each in of_snapshot:
        ami.ebs_snapshot.add_tags({tag["Key"]: tag["Value"] for tag in each["Tags"]})
    try:
        THE["machines"].save(instance_id, ami.id)
    except NodeContainerError as error:
        del backend.amis[ami.id]
        raise EC2ClientError("InternalError", str(error)) from error
    return ami


def refuse_twice(backend: AmiBackend, name: str | None) -> None:
    if any(each.name == name and each.owner_id == backend.account_id for each in backend.amis.values()):  # type: ignore[attr-defined]
        raise EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use")


def copy_image(former: Callable, backend: AmiBackend, source_image_id: str, *args: Any, **kwargs: Any) -> Ami:
    ami = former(backend, source_image_id, *args, **kwargs)
    ami.root_device_type = "ebs"
    THE["machines"].images[ami.id] = THE["machines"].images[source_image_id]
    return ami


def copy_image_encrypted(former: Callable, response: EC2Response) -> ActionResult:
    ask = response._get_param
    key = ask("KmsKeyId")
    if key:
        check_kms_key(response, key)
    answer = former(response)
    ami = response.ec2_backend.amis[answer.result["ImageId"]]
    ami.encrypted_by = (key or "alias/aws/ebs") if str(ask("Encrypted")).lower() == "true" else None
    ami.ebs_snapshot.encrypted = bool(ami.encrypted_by)
    for each in ask("TagSpecifications") or []:
        tagged = ami if each["ResourceType"] == "image" else ami.ebs_snapshot
        tagged.add_tags({tag["Key"]: tag["Value"] for tag in each["Tags"]})
    return answer


def modify_image_attribute(former: Callable, response: EC2Response) -> ActionResult:
    support = response._get_param("ImdsSupport")
    if support:
        image = response.ec2_backend.describe_images(ami_ids=[response._get_param("ImageId")])[0]
        image.imds_support = support["Value"] if isinstance(support, dict) else support
    return former(response)


def check_kms_key(response: EC2Response, key: str) -> None:
    if said := unknown_key(response, [{"Ebs": {"KmsKeyId": key}}]):
        raise EC2ClientError("InvalidKmsKey.InvalidKeyState", said)


def unknown_key(response: EC2Response, mappings: list[dict[str, Any]]) -> str:
    """What is wrong with the keys of disks, or ""."""
    from moto.kms.models import kms_backends

    backend = kms_backends[response.current_account][response.region]
    for key in filter(None, ((each.get("Ebs") or {}).get("KmsKeyId") for each in mappings)):
        alias = backend.get_alias_name(key)
        found = backend.get_key_id_from_alias(alias) if alias.startswith("alias/") else backend.get_key_id(key)
        if found not in backend.keys:
            return f"The KMS key {key} does not exist in {response.region}"
    return ""


def encrypted_mappings(mappings: list[dict[str, Any]], ami: Ami) -> list[dict[str, Any]]:
    key = getattr(ami, "encrypted_by", None)
    return [{**each, "Ebs": {**each["Ebs"], "Encrypted": bool(key), **({"KmsKeyId": key} if key else {})}} for each in mappings]


def deregister_image(former: Callable, backend: AmiBackend, ami_id: str, *args: Any, **kwargs: Any) -> None:
    former(backend, ami_id, *args, **kwargs)
    THE["machines"].forget(ami_id)


def enable_image_deprecation(response: EC2Response) -> ActionResult:
    image = response.ec2_backend.describe_images(ami_ids=[response._get_param("ImageId")])[0]
    image.deprecation_time = response._get_param("DeprecateAt").strftime("%Y-%m-%dT%H:%M:00.000Z")
    return ActionResult({"Return": True})


def disable_image_deprecation(response: EC2Response) -> ActionResult:
    response.ec2_backend.describe_images(ami_ids=[response._get_param("ImageId")])[0].deprecation_time = None
    return ActionResult({"Return": True})


# Placement groups, capacity reservations, topology.


def kept(backend: Any, what: str) -> dict[str, dict[str, Any]]:
    """What a region's backend keeps for this module; moto's reset takes it with the rest."""
    return backend.__dict__.setdefault(f"_localcloud_{what}", {})


def made_id(prefix: str, *of: object) -> str:
    return f"{prefix}-{hashlib.sha256(repr(of).encode()).hexdigest()[:17]}"


def create_placement_group(response: EC2Response) -> ActionResult:
    groups, name = kept(response.ec2_backend, "groups"), response._get_param("GroupName")
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    partitions = response._get_param("PartitionCount")
    groups[name] = {
        "GroupName": name,
        "GroupId": made_id("pg", name),
        "State": "available",
        "Strategy": response._get_param("Strategy") or "cluster",
        **({"PartitionCount": int(partitions)} if partitions else {}),
    }
    return ActionResult({"PlacementGroup": groups[name]})


def describe_placement_groups(response: EC2Response) -> ActionResult:
    groups, wanted = kept(response.ec2_backend, "groups"), response._get_param("GroupNames") or []
    unknown = [each for each in wanted if each not in groups]
    if unknown:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{unknown[0]}' is unknown.")
    return ActionResult({"PlacementGroups": [each for name, each in groups.items() if not wanted or name in wanted]})


def delete_placement_group(response: EC2Response) -> ActionResult:
    groups, name = kept(response.ec2_backend, "groups"), response._get_param("GroupName")
    if any(each.placement.group_name == name for each in response.ec2_backend.all_running_instances()):
        raise EC2ClientError("InvalidPlacementGroup.InUse", f"The Placement Group '{name}' is in use and may not be deleted.")
    if groups.pop(name, None) is None:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return ActionResult({})


def create_capacity_reservation(response: EC2Response) -> ActionResult:
    ask, reservations = response._get_param, kept(response.ec2_backend, "reservations")
    made = made_id("cr", len(reservations), response.region)
    reservations[made] = {
        "CapacityReservationId": made,
        "OwnerId": response.current_account,
        "InstanceType": ask("InstanceType"),
        "InstancePlatform": ask("InstancePlatform"),
        "AvailabilityZone": ask("AvailabilityZone"),
        "TotalInstanceCount": int(ask("InstanceCount")),
        "InstanceMatchCriteria": ask("InstanceMatchCriteria") or "open",
        "Tenancy": "default",
        "State": "active",
        "CreateDate": utcnow(),
        "StartDate": utcnow(),
    }
    return ActionResult({"CapacityReservation": with_free(response, reservations[made])})


def with_free(response: EC2Response, reservation: dict[str, Any]) -> dict[str, Any]:
    """A reservation with what is left of it."""
    mine = reservation["CapacityReservationId"]
    used = [each for each in response.ec2_backend.all_running_instances() if getattr(each, "capacity_reservation_id", None) == mine]
    free = reservation["TotalInstanceCount"] - len(used) if reservation["State"] == "active" else 0
    return {**reservation, "AvailableInstanceCount": free}


def take_capacity(response: EC2Response, reservation: str, number: int) -> None:
    known = kept(response.ec2_backend, "reservations")
    if reservation not in known:
        raise EC2ClientError("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{reservation}' does not exist")
    if with_free(response, known[reservation])["AvailableInstanceCount"] < number:
        raise EC2ClientError("ReservationCapacityExceeded", f"The capacity reservation {reservation} has not room for {number} instances.")


def describe_capacity_reservations(response: EC2Response) -> ActionResult:
    wanted = response._get_param("CapacityReservationIds") or []
    known = kept(response.ec2_backend, "reservations").items()
    return ActionResult({"CapacityReservations": [with_free(response, each) for made, each in known if not wanted or made in wanted]})


def cancel_capacity_reservation(response: EC2Response) -> ActionResult:
    reservation = kept(response.ec2_backend, "reservations").get(response._get_param("CapacityReservationId"))
    if reservation:
        reservation["State"] = "cancelled"
    return ActionResult({"Return": reservation is not None})


def describe_instance_topology(response: EC2Response) -> ActionResult:
    """Three layers of switches: 4, 16 and 64 instances below one."""
    ask = response._get_param
    ids, groups = ask("InstanceIds") or [], ask("GroupNames") or []
    running = response.ec2_backend.all_running_instances()
    shown = [
        {
            "InstanceId": each.id,
            "InstanceType": each.instance_type,
            "GroupName": each.placement.group_name or None,
            "AvailabilityZone": each.placement.zone,
            "NetworkNodes": [made_id("nn", response.region, below, place // below) for below in (64, 16, 4)],
        }
        for place, each in enumerate(running)
        if (not ids or each.id in ids) and (not groups or each.placement.group_name in groups)
    ]
    begin, most = int(ask("NextToken") or 0), int(ask("MaxResults") or 100)
    following = str(begin + most) if begin + most < len(shown) else None
    return ActionResult({"Instances": shown[begin : begin + most], "NextToken": following})
