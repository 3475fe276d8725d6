# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: hyperpod
short_description: The nodes of SageMaker HyperPod clusters
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Finds the nodes of one or more HyperPod clusters, on Slurm or EKS, and makes groups of their instance groups, types and states.
  - Each host is reached by ssh through Session Manager, whose target is C(hyperpod_ssm_target); the nodes need no open port.
extends_documentation_fragment:
  - constructed
  - inventory_cache
requirements:
  - boto3
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [muster.fleet.hyperpod]
  clusters:
    description: Names of clusters. By default all of the region.
    type: list
    elements: str
    default: []
  region:
    description: The region.
    type: str
    env:
      - name: AWS_REGION
  profile:
    description: Profile of the AWS configuration.
    type: str
    env:
      - name: AWS_PROFILE
  endpoint_url:
    description: Address of an API to use instead of AWS's own.
    type: str
    env:
      - name: AWS_URL
  details:
    description: Ask DescribeClusterNode for the address of each node, a call for each.
    type: bool
    default: true
"""

EXAMPLES = r"""
# hyperpod.yml: the nodes of one cluster
plugin: muster.fleet.hyperpod
region: us-west-2
clusters: [training]
keyed_groups:
  - {key: hyperpod_instance_group, prefix: queue}
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import Accounts, Region
from ansible_collections.muster.fleet.plugins.plugin_utils.hyperpod_hosts import host_of
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory import FleetInventory

OPTIONS = ("region", "profile", "endpoint_url")


class InventoryModule(FleetInventory):
    """Hosts from HyperPod."""

    NAME = "muster.fleet.hyperpod"

    def verify_file(self, path):
        """Accept files called hyperpod.yml or ending in .hyperpod.yml."""
        return super().verify_file(path) and path.endswith(("hyperpod.yml", "hyperpod.yaml"))

    def _find(self, cache):
        options = {name: self.templar.template(self.get_option(name)) for name in OPTIONS}
        options |= {"access_key": "", "secret_key": "", "session_token": ""}
        asked = [options, sorted(self.get_option("clusters")), self.get_option("details")]
        key = self.get_option("cache") and "muster_hyperpod_" + hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
        self._place(self._cached(key, cache, lambda: (self._ask(options), True)), "hyperpod_nodes")

    def _ask(self, options):
        region = Region(Accounts(options, who="hyperpod"), options["region"] or "")
        region.client("sagemaker")
        names = self.get_option("clusters") or [
            each["ClusterName"] for each in region.every("sagemaker", "ListClusters", "ClusterSummaries")
        ]
        hosts = []
        with ThreadPoolExecutor(max_workers=16) as pool:
            for name in names:
                cluster = region.call("sagemaker", "DescribeCluster", ClusterName=name)
                nodes = region.every("sagemaker", "ListClusterNodes", "ClusterNodeSummaries", ClusterName=name)

                def detail(node, name=name):
                    return region.call("sagemaker", "DescribeClusterNode", ClusterName=name, NodeId=node["InstanceId"])["NodeDetails"]

                found = list(pool.map(detail, nodes)) if self.get_option("details") else nodes
                hosts += [host_of(cluster, node, region.name, options["profile"] or "") for node in found]
        return hosts
