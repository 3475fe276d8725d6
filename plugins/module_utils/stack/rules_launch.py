# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope launch: how instances are requested. A launch is a mapping:

market, platform ("ec2"|"batch-mnp"), managed, availability_zones [name], subnets [id], placement_group, public_ip
interfaces [{card, device, type}], security_group {from_self, to_self}, ami {boot_mode, arch, system}
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import broken_unless, rule

GRACE_SYSTEMS = ("amzn2023", "ubuntu22.04", "ubuntu24.04", "rocky9")


@rule("efa-sg", "launch", reason="EFA traffic is not IP; only a rule that names the group itself lets it through", source="EFA user guide")
def efa_sg(case):
    if not case.type("efa"):
        return None
    both = case.launched("security_group", "from_self") and case.launched("security_group", "to_self")
    return broken_unless(both, "the security group must allow all traffic from itself and to itself")


@rule("efa-az", "launch", reason="EFA traffic is not routed", source="EFA user guide; aws-parallelcluster 3.16")
def efa_az(case):
    if not case.type("efa"):
        return None
    if len(case.launched("availability_zones")) != 1 or len(case.launched("subnets")) != 1:
        return broken_unless(False, "all nodes must be in one availability zone and one subnet")
    placed = case.launched("market") == "capacity-block" or case.launch.get("placement_group")
    return broken_unless(placed, "the launch must name a placement group, or be of a capacity block")


@rule("boot-mode", "launch", reason="the type boots by BIOS alone, or by UEFI alone", source="Amazon EC2, DescribeInstanceTypes")
def boot_mode(case):
    only = case.type("boot_mode")
    if only == "both":
        return None
    other = "uefi" if only == "legacy-bios" else "legacy-bios"
    return broken_unless(case.launched("ami", "boot_mode") != other, "the image must not be for %s only" % other)


@rule("arm-ami", "launch", reason="Grace is an ARM", source="aws-parallelcluster 3.16; Amazon EC2, DescribeInstanceTypes")
def arm_ami(case):
    if not case.type("name").startswith("p6e-"):
        return None
    right = case.launched("ami", "arch") == "arm64" and case.launched("ami", "system") in GRACE_SYSTEMS
    return broken_unless(right, "the image must be for arm64, of %s" % ", ".join(GRACE_SYSTEMS))


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
