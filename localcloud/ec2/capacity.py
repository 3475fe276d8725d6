# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Where instances run: placement groups, capacity reservations and the topology of the network."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

from localcloud.wrapping import kept, made_id

# Filters of DescribePlacementGroups, and the value that each compares.
GROUP_FILTERS = {"group-id": "GroupId", "group-name": "GroupName", "state": "State", "strategy": "Strategy"}


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
    shown = [each for name, each in groups.items() if not wanted or name in wanted]
    for each in response._get_param("Filters") or []:
        if each["Name"] not in GROUP_FILTERS:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{each['Name']}' is invalid")
        shown = [group for group in shown if group[GROUP_FILTERS[each["Name"]]] in each["Values"]]
    return ActionResult({"PlacementGroups": shown})


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
    """A reservation with its number of free instances."""
    mine = reservation["CapacityReservationId"]
    used = [each for each in response.ec2_backend.all_running_instances() if getattr(each, "capacity_reservation_id", None) == mine]
    free = reservation["TotalInstanceCount"] - len(used) if reservation["State"] == "active" else 0
    return {**reservation, "AvailableInstanceCount": free}


def take_capacity(response: EC2Response, reservation: str, number: int) -> None:
    known = kept(response.ec2_backend, "reservations")
    if reservation not in known:
        raise EC2ClientError("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{reservation}' does not exist")
    if with_free(response, known[reservation])["AvailableInstanceCount"] < number:
        raise EC2ClientError("ReservationCapacityExceeded", f"The capacity reservation {reservation} has no room for {number} instances.")


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
    """Three layers of network nodes, with 4, 16 and 64 instances below one node."""
    ask = response._get_param
    ids, groups = ask("InstanceIds") or [], ask("GroupNames") or []
    running = response.ec2_backend.all_running_instances()
    shown = [
        {
            "InstanceId": each.id,
            "InstanceType": each.instance_type,
            "GroupName": each.placement.group_name or None,
            "AvailabilityZone": each.placement.zone,
            "NetworkNodes": [made_id("nn", response.region, below, index // below) for below in (64, 16, 4)],
        }
        for index, each in enumerate(running)
        if (not ids or each.id in ids) and (not groups or each.placement.group_name in groups)
    ]
    begin, most = int(ask("NextToken") or 0), int(ask("MaxResults") or 100)
    following = str(begin + most) if begin + most < len(shown) else None
    return ActionResult({"Instances": shown[begin : begin + most], "NextToken": following})
