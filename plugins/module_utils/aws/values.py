# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ids that exist only after other stacks were made. A rendered file names each as ${VARIABLE}, and create.sh asks AWS for it."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws import plan


class Values:
    """The variables that the files of one cluster name. commands: {variable: the command of the shell that prints its value}."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.commands = {}

    def named(self, variable, command):
        """The text that stands for a variable in a file."""
        self.commands[variable] = command
        return "${%s}" % variable

    def output(self, variable, stack, key, item=0):
        """An output of a stack. item: which of a list between commas, from 1; 0 is the whole text."""
        return self.named(variable, "output %s %s" % (stack, key) + (" | cut -d, -f%d" % item if item else ""))

    @property
    def network(self):
        """The name of the VPC stack, "" for a VPC that the document gives by its ids."""
        return plan.network_of(self.cluster).get("VPCStackParameter", "").replace("none", "")

    def vpc(self):
        return self.cluster["vpc"]["id"] or self.output("VPC", self.network, "VPC")

    def subnets(self):
        """The private subnets, one for each zone of the document."""
        vpc, zones = self.cluster["vpc"], self.cluster["zones"]
        if vpc["id"]:
            return list(vpc["subnets"])
        if len(zones) == 1:
            return [self.output("PRIVATE_SUBNET", self.network, "PrivateSubnet")]
        return [self.output("PRIVATE_SUBNET_%d" % item, self.network, "PrivateSubnets", item) for item in range(1, len(zones) + 1)]

    def security_group(self):
        return self.cluster["vpc"]["security_group"] or self.output("SECURITY_GROUP", self.network, "SecurityGroup")

    def lustre(self, what):
        """Of the Lustre that the fsx stack makes: its Id, DNSname or Mountname."""
        name = "FSxLustreFilesystem" + what
        return self.output("LUSTRE_" + what.upper(), plan.stack_name(self.cluster, "fsx"), name)

    def openzfs(self, output):
        """An output of the fsx stack about OpenZFS."""
        return self.output("OPENZFS_" + output.removeprefix("FSxOpenZFS").upper(), plan.stack_name(self.cluster, "fsx"), output)

    def account(self):
        return self.cluster["account"] or self.named("ACCOUNT", "aws sts get-caller-identity --query Account --output text")


def partition(region):
    """The first field of an ARN after `arn` for a region."""
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region[: region.rindex("-", 0, region.rindex("-"))], "aws")
