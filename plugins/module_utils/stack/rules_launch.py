# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope launch: how instances are requested, or were: the inventory of EC2 says of live ones what it knows. A launch is a mapping:

market, platform ("ec2"|"batch-mnp"), managed, availability_zones [name], subnets [id], placement_group, public_ip
interfaces [{card, device, type}], security_group {from_self, to_self}, ami {boot_mode, arch, system}, threads_per_core
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import broken_unless, rule

INTERFACES = ("interface", "efa", "efa-only")
GRACE_SYSTEMS = ("amzn2023", "ubuntu22.04", "ubuntu24.04", "rocky9")


def _over_efa(case):
    """Whether instances send over EFA. Types without GPUDirect RDMA are used without an EFA interface, too."""
    if not case.type("efa"):
        return False
    return case.type("gpudirect_rdma") or "interfaces" not in case.launch or bool(_efas(case))


@rule("efa-sg", "launch", reason="EFA traffic is not IP; only a rule that names the group itself lets it through", source="EFA user guide")
def efa_sg(case):
    if not _over_efa(case):
        return None
    both = case.launched("security_group", "from_self") and case.launched("security_group", "to_self")
    return broken_unless(both, "the security group must allow all traffic from itself and to itself")


@rule(
    "efa-az",
    "launch",
    reason="EFA traffic does not leave its availability zone and is not routed between subnets",
    source="EFA user guide; aws-parallelcluster 3.16",
)
def efa_az(case):
    if not _over_efa(case):
        return None
    right = len(case.launched("availability_zones")) == 1 and len(case.launched("subnets")) == 1
    return broken_unless(right, "all nodes must be in one availability zone and one subnet")


@rule(
    "efa-placement",
    "launch",
    warn=True,
    reason="instances that are placed apart have a longer way between them",
    source="EFA user guide; aws-parallelcluster 3.16",
)
def efa_placement(case):
    if not _over_efa(case) or case.launched("market") == "capacity-block":
        return None
    return broken_unless(case.launch.get("placement_group"), "the launch should name a cluster placement group")


@rule("boot-mode", "launch", reason="the type boots by BIOS alone, or by UEFI alone", source="Amazon EC2, DescribeInstanceTypes")
def boot_mode(case):
    only = case.type("boot_mode")
    if only == "both":
        return None
    other = "uefi" if only == "legacy-bios" else "legacy-bios"
    return broken_unless(case.launched("ami", "boot_mode") != other, "the image must not be for %s only" % other)


@rule("ami-arch", "launch", reason="an image of another architecture does not boot", source="Amazon EC2, DescribeInstanceTypes")
def ami_arch(case):
    arch = case.type("arch")
    return broken_unless(case.launched("ami", "arch") == arch, "the image must be for %s" % arch)


@rule("arm-ami", "launch", reason="Grace has drivers for these systems alone", source="aws-parallelcluster 3.16")
def arm_ami(case):
    if not case.type("name").startswith("p6e-"):
        return None
    return broken_unless(case.launched("ami", "system") in GRACE_SYSTEMS, "the image must be of %s" % ", ".join(GRACE_SYSTEMS))


@rule(
    "launch-threads",
    "launch",
    reason="jobs ask for the type's own CPUs, and so does a line of Slurm that nobody measured",
    source="Amazon EC2, CpuOptions; jobs/fleet.py; Slurm slurm.conf manual",
)
def launch_threads(case):
    threads = case.type("threads_per_core")
    return broken_unless(case.launched("threads_per_core") == threads, "the launch must leave %d threads per core" % threads)


@rule("nic-type", "launch", reason="EC2 has no other type for instances", source="Amazon EC2 API, InterfaceType")
def nic_type(case):
    for each in case.launched("interfaces"):
        if each["type"] not in INTERFACES:
            what = "the interface on network card %s has the unknown type %s" % (each["card"], each["type"])
            return broken_unless(False, "%s; %s" % (what, nearest(each["type"], INTERFACES).rstrip("?.")))
    return ""


@rule("nic-count", "launch", reason="a rail that is missing slows every collective", source="EFA user guide, accelerated types; catalogue")
def nic_count(case):
    found, right = len(_efas(case)), case.type("efa_counts")
    if not _over_efa(case):
        return None
    said = "the launch must have %s EFA interfaces and has %d" % (" or ".join(str(each) for each in right), found)
    return broken_unless(found in right, said)


def _efas(case):
    return [each for each in case.launched("interfaces") if each["type"] in ("efa", "efa-only")]


@rule("nic-b300", "launch", reason="network card 0 of P6-B300 carries ENA alone", source="EFA user guide, accelerated types")
def nic_b300(case):
    if not case.type("name").startswith("p6-b300"):
        return None
    return broken_unless(all(each["card"] for each in _efas(case)), "no EFA may be on network card 0")


@rule(
    "nic-p6e",
    "launch",
    reason="card 0 of P6e carries ENA alone, and its odd cards efa-only",
    source="EFA user guide, accelerated types; aws-parallelcluster 3.16",
)
def nic_p6e(case):
    if not case.type("name").startswith("p6e-"):
        return None
    for each in case.launched("interfaces"):
        if not each["card"] and each["type"] != "interface":
            return broken_unless(False, "no EFA may be on network card 0")
        if each["card"] % 2 and each["type"] != "efa-only":
            return broken_unless(False, "the type of the interface on network card %s must be efa-only" % each["card"])
    return ""


@rule(
    "nic-primary", "launch", reason="the instance has its address there, and efa-only has none", source="EFA user guide, accelerated types"
)
def nic_primary(case):
    first = [each["type"] for each in case.launched("interfaces") if (each["card"], each["device"]) == (0, 0)]
    right = len(first) == 1 and first[0] in ("interface", "efa")
    return broken_unless(right, "network card 0 must have one interface of type interface or efa at device index 0")


@rule("nic-one-efa", "launch", reason="RunInstances refuses a second one", source="EFA user guide, accelerated types")
def nic_one_efa(case):
    cards = [each["card"] for each in _efas(case)]
    twice = [card for card in cards if cards.count(card) > 1]
    return broken_unless(not twice, "network card %s may have one EFA at most" % (twice or [""])[0])


@rule("nic-di", "launch", reason="RunInstances refuses other device indexes", source="Amazon EC2 API; eksctl#7520")
def nic_di(case):
    most = {each["card"]: each["max_interfaces"] for each in case.type("network_cards")}
    for each in case.launched("interfaces"):
        if each["card"] not in most:
            return broken_unless(False, "network card %s is none of the %d that the type has" % (each["card"], len(most)))
        if each["device"] >= most[each["card"]]:
            return broken_unless(False, "the device index of network card %s must be below %s" % (each["card"], most[each["card"]]))
    return ""


@rule("nic-publicip", "launch", reason="RunInstances gives an address to a single interface only", source="Amazon EC2 API; dstack#3865")
def nic_publicip(case):
    if len(case.launched("interfaces")) < 2:
        return None
    return broken_unless(not case.launched("public_ip"), "no public address may be assigned; take an Elastic IP, or a private subnet")


@rule("p6e-market", "launch", reason="UltraServers come in capacity blocks alone", source="EC2 capacity blocks; catalogue")
def p6e_market(case):
    if not case.type("name").startswith("p6e-"):
        return None
    return broken_unless(case.launched("market") == "capacity-block", "the market must be capacity-block")


@rule("g-market", "launch", reason="there are no capacity blocks of G types", source="Amazon EC2, DescribeInstanceTypes")
def g_market(case):
    if not case.type("family").startswith("g"):
        return None
    return broken_unless(case.launched("market") != "capacity-block", "the market must be on-demand or spot")


@rule("batch-mnp", "launch", reason="multi-node jobs of Batch need it", source="AWS Batch user guide, mnp-ce")
def batch_mnp(case):
    if case.launched("platform") != "batch-mnp":
        return None
    right = case.launched("managed") and case.launched("market") != "spot" and case.launch.get("placement_group")
    return broken_unless(right, "the compute environment must be managed, not spot, and in one placement group")
