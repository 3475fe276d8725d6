# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AMIs: an image of the engine behind each, encryption of copies, IMDS support and deprecation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami, AmiBackend
from moto.ec2.responses import EC2Response

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.wrapping import CLOUD


def create_image(
    former: Callable, backend: AmiBackend, instance_id: str, name: str, *description: str, tag_specifications: list[dict[str, Any]]
) -> Ami:
    refuse_twice(backend, name)
    of_snapshot = [each for each in tag_specifications if each["ResourceType"] == "snapshot"]
    ami = former(
        backend, instance_id, name, *description, tag_specifications=[each for each in tag_specifications if each not in of_snapshot]
    )
    ami.root_device_type = "ebs"
    like_its_root(ami, backend)
    for each in of_snapshot:
        ami.ebs_snapshot.add_tags({tag["Key"]: tag["Value"] for tag in each["Tags"]})
    try:
        CLOUD["machines"].save(instance_id, ami.id)
    except NodeContainerError as error:
        del backend.amis[ami.id]
        raise EC2ClientError("InternalError", str(error)) from error
    return ami


def like_its_root(ami: Ami, backend: Any) -> None:
    """Give an AMI of an instance the root disk of that instance."""
    instance = ami.instance
    ami.root_device_name = backend.amis[instance.image_id].root_device_name if instance.image_id in backend.amis else "/dev/xvda"
    for device, attached in instance.get_block_device_mapping:
        if device == ami.root_device_name:
            volume = backend.volumes[attached.volume_id]
            ami.root_ebs = {"VolumeSize": volume.size, "VolumeType": volume.volume_type}  # type: ignore[attr-defined]
            ami.encrypted_by = volume.kms_key_id if volume.encrypted else None  # type: ignore[attr-defined]
            ami.ebs_snapshot.encrypted = volume.encrypted


def refuse_twice(backend: AmiBackend, name: str | None) -> None:
    if any(each.name == name and each.owner_id == backend.account_id for each in backend.amis.values()):  # type: ignore[attr-defined]
        raise EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use")


def copy_image(former: Callable, backend: AmiBackend, source_image_id: str, *args: Any, **kwargs: Any) -> Ami:
    ami = former(backend, source_image_id, *args, **kwargs)
    regions = ec2_backends[backend.account_id].values()  # type: ignore[attr-defined]
    source = next(region.amis[source_image_id] for region in regions if source_image_id in region.amis)
    ami.root_device_name, ami.root_ebs = source.root_device_name, getattr(source, "root_ebs", {})  # type: ignore[attr-defined]
    ami.root_device_type = "ebs"
    CLOUD["machines"].images[ami.id] = CLOUD["machines"].images[source_image_id]
    return ami


def copy_image_encrypted(former: Callable, response: EC2Response) -> ActionResult:
    ask = response._get_param
    key = ask("KmsKeyId")
    if key:
        check_kms_key(response, key)
    answer = former(response)
    ami = response.ec2_backend.amis[answer.result["ImageId"]]
    ami.encrypted_by = key_arn(response, key or "alias/aws/ebs") if str(ask("Encrypted")).lower() == "true" else None
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


def key_arn(response: EC2Response, key: str) -> str:
    """The ARN of a key that a request names by id, ARN or alias; "" for one that does not exist."""
    from moto.kms.models import kms_backends

    backend = kms_backends[response.current_account][response.region]
    alias = backend.get_alias_name(key)
    found = backend.get_key_id_from_alias(alias) if alias.startswith("alias/") else backend.get_key_id(key)
    return backend.keys[found].arn if found in backend.keys else ""


def unknown_key(response: EC2Response, mappings: list[dict[str, Any]]) -> str:
    """The fault of the first disk whose key does not exist, or ""."""
    for key in filter(None, ((each.get("Ebs") or {}).get("KmsKeyId") for each in mappings)):
        if not key_arn(response, key):
            return f"The KMS key {key} does not exist in {response.region}"
    return ""


def true_mappings(mappings: list[dict[str, Any]], ami: Ami) -> list[dict[str, Any]]:
    """The root disk as it is; moto gives every AMI the same."""
    key, root = getattr(ami, "encrypted_by", None), getattr(ami, "root_ebs", {})
    return [{**each, "Ebs": {**each["Ebs"], **root, "Encrypted": bool(key), **({"KmsKeyId": key} if key else {})}} for each in mappings]


def deregister_image(former: Callable, backend: AmiBackend, ami_id: str, *args: Any, **kwargs: Any) -> None:
    former(backend, ami_id, *args, **kwargs)
    CLOUD["machines"].forget(ami_id)


def enable_image_deprecation(response: EC2Response) -> ActionResult:
    image = response.ec2_backend.describe_images(ami_ids=[response._get_param("ImageId")])[0]
    image.deprecation_time = response._get_param("DeprecateAt").strftime("%Y-%m-%dT%H:%M:00.000Z")
    return ActionResult({"Return": True})


def disable_image_deprecation(response: EC2Response) -> ActionResult:
    response.ec2_backend.describe_images(ami_ids=[response._get_param("ImageId")])[0].deprecation_time = None
    return ActionResult({"Return": True})
