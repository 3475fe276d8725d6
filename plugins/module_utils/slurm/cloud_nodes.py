# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which instances Slurm's ResumeProgram starts for nodes of the cloud, in which order it tries zones and types, and what it says when none
has room. The controller has this file beside its program (playbooks/files/cloud_nodes.py), so it imports nothing but Python's own.

settings: {region, cluster, groups: {name: {nodes: [NodeName], attempts: [{template, about, subnet?}]}}}. An attempt is a launch template of
EC2, and a subnet instead of the template's own; `about` says for people what it is, such as `p5.48xlarge in us-east-1a`.
"""

from __future__ import annotations

# EC2's codes that say: not here, not now. Another zone or type may have room; every other error would come again.
NO_ROOM = (
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacityOnOutpost",
    "InsufficientFreeAddressesInSubnet",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
    "VcpuLimitExceeded",
)
MOST = 200  # characters of a reason that Slurm shows
# What a request takes of an interface of a launch template.
INTERFACE = ("AssociatePublicIpAddress", "DeleteOnTermination", "Description", "DeviceIndex", "Groups", "InterfaceType", "NetworkCardIndex")


class CloudNodesError(ValueError):
    """Settings that cannot start nodes; the text is one sentence with the remedy."""


class LaunchError(Exception):
    """EC2 refused a launch; `code` is its error code."""

    def __init__(self, text, code=""):
        super().__init__(text)
        self.code = code


def checked(settings):
    """The settings. Raises CloudNodesError with one sentence for the first fault."""
    for field in ("region", "cluster", "groups"):
        if not settings.get(field):
            raise CloudNodesError("muster_cloud_nodes has no %s; add it." % field)
    owner: dict[str, str] = {}
    for name, group in settings["groups"].items():
        for field in ("nodes", "attempts"):
            if not group.get(field):
                raise CloudNodesError("Group %s of muster_cloud_nodes has no %s; add some." % (name, field))
        for attempt in group["attempts"]:
            if not attempt.get("template") or not attempt.get("about"):
                message = "An attempt of group %s has no template or no about; give the launch template, and type and zone as text."
                raise CloudNodesError(message % name)
        for node in group["nodes"]:
            if node in owner:
                raise CloudNodesError("Node %s is in the groups %s and %s; remove it from one." % (node, owner[node], name))
            owner[node] = name
    return settings


def batches(settings, nodes, jobs=()):
    """[(group or "", [nodes])] to start together: those of one job and one group, then each other node alone. "" is no group of ours.

    jobs: of Slurm's SLURM_RESUME_FILE, each with its nodes as a list. Nodes of one job must be near each other, so they start in one zone.
    """
    groups = {node: name for name, group in settings["groups"].items() for node in group["nodes"]}
    found, waiting = [], list(nodes)
    for job in [*jobs, *([each] for each in nodes)]:
        together: dict[str, list[str]] = {}
        for node in job:
            if node in waiting:
                waiting.remove(node)
                together.setdefault(groups.get(node, ""), []).append(node)
        found += sorted(together.items())
    return found


def start(attempts, nodes, launch):
    """(instances, "") of nodes that started, all in one place, or ({}, reason) when no attempt has room.

    launch(attempt, nodes) gives {node: instance}, for all or none of them, or raises LaunchError.
    """
    said = []
    for attempt in attempts:
        try:
            return launch(attempt, nodes), ""
        except LaunchError as error:
            if error.code not in NO_ROOM:
                return {}, reason("%s cannot start: %s" % (attempt["about"], error))
            said.append("%s (%s)" % (attempt["about"], error.code))
    return {}, reason("no room for %d nodes: %s" % (len(nodes), ", ".join(said)))


def reason(text):
    """A reason as Slurm takes it: one short line."""
    return ("muster:cloud: " + " ".join(text.split()).replace('"', "'"))[:MOST]


def interfaces(template, subnet):
    """The interfaces of a launch template in another subnet."""
    return [{**{key: each[key] for key in INTERFACE if key in each}, "SubnetId": subnet} for each in template]
