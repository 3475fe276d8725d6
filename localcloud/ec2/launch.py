# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""RunInstances: checks that moto lacks, everything that a launch template may say, and a machine for each instance."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidAMIIdError, InvalidKeyPairNameError
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceBackend, StateReason
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import can_rehearse
from localcloud.ec2.amis import key_arn, unknown_key
from localcloud.ec2.capacity import take_capacity
from localcloud.wrapping import CLOUD, kept

# Each time a machine comes to rest it gets the next number. A look compares it to see whether the machine changed in the meantime.
TURNS = itertools.count(1)


def get_param(former: Callable, response: EC2Response, name: str, *args: Any, **kwargs: Any) -> Any:
    """Values that run_instances below worked out override the request."""
    found = getattr(response, "_localcloud", {})
    return found[name] if name in found else former(response, name, *args, **kwargs)


def run_instances(former: Callable, response: EC2Response) -> ActionResult:
    """Use everything that the launch template or the request says; a ClientToken that was seen before starts nothing."""
    ask, backend = response._get_param, response.ec2_backend
    token = ask("ClientToken")
    known = backend.__dict__.setdefault("_localcloud_tokens", {})
    asked = sorted((name, values) for name, values in response.querystring.items() if name != "ClientToken")
    if token in known:
        before, result = known[token]
        if before != asked:
            raise EC2ClientError("IdempotentParameterMismatch", "The client token was used before, with other parameters.")
        return ActionResult(result)
    template = backend._get_template_from_args(ask("LaunchTemplate")).data if ask("LaunchTemplate") else {}
    check_request(response, template)
    found: dict[str, Any] = {"MinCount": ask("MaxCount") or ask("MinCount", 1)}
    found["BlockDeviceMappings"] = disks(response, template)
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
    if not ask("IamInstanceProfile"):
        found |= {f"IamInstanceProfile.{key}": value for key, value in template.get("IamInstanceProfile", {}).items()}
    if not ask("InstanceMarketOptions") and (market := template.get("InstanceMarketOptions")):
        found["InstanceMarketOptions.MarketType"] = market["MarketType"]
    response._localcloud = found  # type: ignore[attr-defined]
    answer = former(response)
    unknown = unknown_key(response, found["BlockDeviceMappings"])
    for instance in answer.result.instances:
        if unknown:
            # As on AWS: the request is accepted, and its instances terminate.
            instance.terminate()
            instance.state_reason = StateReason(f"Client.InvalidKMSKey.InvalidState: {unknown}", "Client.InvalidKMSKey.InvalidState")
        instance.placement.group_name = group or ""
        instance.capacity_reservation_id = reservation
        instance.capacity_reservation_specification = specification or None
    if token:
        known[token] = asked, answer.result
    return answer


def check_request(response: EC2Response, template: dict[str, Any]) -> None:
    """Refuse what AWS refuses and moto accepts."""
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
    least, most = int(ask("MinCount") or 1), int(ask("MaxCount") or 1)
    if least > most:
        raise EC2ClientError(
            "InvalidParameterValue", f"Value ({least}) for parameter minCount is invalid. It is more than maxCount ({most})."
        )
    if kind:
        check_type(kind, backend.amis[image], ask("NetworkInterfaces") or template.get("NetworkInterfaces") or [])


def check_type(kind: str, ami: Any, interfaces: list[dict[str, Any]]) -> None:
    """Refuse an AMI and interfaces that a type cannot have."""
    have = INSTANCE_TYPES[kind]
    architectures = have.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    if architectures and ami.architecture not in architectures:
        raise EC2ClientError(
            "InvalidParameterValue",
            f"The architecture '{','.join(architectures)}' of the specified instance type does not match the architecture "
            f"'{ami.architecture}' of the specified AMI.",
        )
    network = have.get("NetworkInfo", {})
    most = network.get("MaximumNetworkInterfaces")
    if most and len(interfaces) > most:
        raise EC2ClientError("AttachmentLimitExceeded", f"Interface count {len(interfaces)} exceeds the limit for {kind}")
    wants_efa = any(str(each.get("InterfaceType") or "").startswith("efa") for each in interfaces)
    if wants_efa and not network.get("EfaSupported"):
        raise EC2ClientError("InvalidParameterCombination", f"EFA interfaces are not supported on {kind}")


def disks(response: EC2Response, template: dict[str, Any]) -> list[dict[str, Any]]:
    """The disks of an instance: those of its AMI, changed by its launch template and by the request. Keys are named by their ARN."""
    ask = response._get_param
    ami = response.ec2_backend.amis[ask("ImageId") or template["ImageId"]]
    found: dict[str, dict[str, Any]] = {}
    of_ami = [{**each, "Ebs": {**each["Ebs"], "DeleteOnTermination": True}} for each in ami.block_device_mappings]
    for each in [*of_ami, *(template.get("BlockDeviceMappings") or ()), *(ask("BlockDeviceMappings") or ())]:
        before = found.get(each["DeviceName"], {})
        ebs = {**before.get("Ebs", {}), **(each.get("Ebs") or {})}
        if ebs.get("KmsKeyId"):
            ebs["KmsKeyId"] = key_arn(response, ebs["KmsKeyId"]) or ebs["KmsKeyId"]
        found[each["DeviceName"]] = {**before, **each, "Ebs": ebs}
    return list(found.values())


def prep_nics(former: Callable, instance: Instance, nic_spec: list[dict[str, Any]], **kwargs: Any) -> None:
    """moto stores interfaces by DeviceIndex, which several cards of one instance share; give it unique ones."""
    asked = [dict(each) for each in nic_spec]
    former(instance, [{**each, "DeviceIndex": index} for index, each in enumerate(asked)], **kwargs)
    for index, each in enumerate(asked):
        nic = instance.nics[index]
        nic.interface_type = each.get("InterfaceType") or "interface"
        nic.device_index = int(each.get("DeviceIndex", 0))
        nic.network_card = int(each.get("NetworkCardIndex", 0))


def attached(former: Callable, attachment: Attachment, nic: Any) -> None:
    former(attachment, nic)
    attachment.network_card_index = getattr(nic, "network_card", 0)


def boot(former: Callable, backend: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
    """Start a machine for each new instance, in parallel. When one cannot start, terminate all.

    moto gives the instance profile to the first instance only, and after this call; the user data of each may need its keys at once.
    """
    reservation = former(backend, *args, **kwargs)
    named = {key: kwargs.get(key) for key in ("iam_instance_profile_arn", "iam_instance_profile_name")}
    profile = filter_iam_instance_profiles(backend.account_id, backend.partition, **named) if any(named.values()) else None  # type: ignore[attr-defined]
    for each in reservation.instances:
        each.profile = profile
        if profile and each is not reservation.instances[0]:
            backend.associate_iam_instance_profile(each.id, **named)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(4) as pool:
        faults = [each for each in pool.map(boot_one, reservation.instances) if each]
    if faults:
        for instance in reservation.instances:
            instance.terminate()
        raise EC2ClientError("InsufficientInstanceCapacity", faults[0])
    return reservation


def boot_one(instance: Instance) -> str:
    """Start the instance's machine; return why it failed, or ""."""
    instance.dead = CLOUD["faults"].take(boots=False) is not None  # type: ignore[attr-defined]
    nic = instance.nics[0]
    nic.public_ip_auto_assign, nic.public_ip = False, None
    if instance.dead:  # type: ignore[attr-defined]
        return ""
    try:
        address = CLOUD["machines"].start(instance.id, instance.image_id, *first_boot(instance))
    except (NodeContainerError, RuntimeError) as error:
        return str(error)
    nic.private_ip_address = address
    nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    instance.settled = next(TURNS)  # type: ignore[attr-defined]
    return ""


def first_boot(instance: Instance) -> tuple[str, bytes, str]:
    """The public key and the user data for cloud-init, and the instance type whose devices the machine has, or ""."""
    keys = [each.public_key for each in instance.ec2_backend.key_pairs.values() if each.key_name == instance.key_name]
    data = base64.b64decode(str(instance.user_data)) if instance.user_data else b""
    kind = instance.instance_type if can_rehearse(instance.instance_type) else ""
    return "".join(f"{each.strip()}\n" for each in keys), data, kind
