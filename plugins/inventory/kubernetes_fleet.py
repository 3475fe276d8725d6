# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_fleet
short_description: The nodes of a Kubernetes cluster
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Asks C(kubectl) for the nodes of a cluster, and makes groups of their instance types, conditions, zones and network layers.
  - Each host has the numbers of GPUs, EFA and Neuron devices that its kubelet offers.
extends_documentation_fragment:
  - constructed
  - inventory_cache
requirements:
  - kubectl
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [muster.fleet.kubernetes_fleet]
  kubectl:
    description: The words that run kubectl.
    type: list
    elements: str
    default: [kubectl]
  kubeconfig:
    description: The kubeconfig, by default that of kubectl.
    type: str
    default: ""
  context:
    description: The context, by default the current one.
    type: str
    default: ""
  selector:
    description: Only nodes with these labels.
    type: str
    default: ""
  timeout:
    description: Seconds to wait for an answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
# kubernetes_fleet.yml: the GPU nodes of one cluster
plugin: muster.fleet.kubernetes_fleet
context: training
selector: nvidia.com/gpu.present=true
"""

import hashlib
import json
import subprocess

from ansible_collections.muster.fleet.plugins.plugin_utils.inventory import FleetInventory
from ansible_collections.muster.fleet.plugins.plugin_utils.kubernetes_hosts import KubernetesError, hosts_of


class InventoryModule(FleetInventory):
    """Hosts from Kubernetes."""

    NAME = "muster.fleet.kubernetes_fleet"

    def verify_file(self, path):
        """Accept files called kubernetes_fleet.yml or ending in .kubernetes_fleet.yml."""
        return super().verify_file(path) and path.endswith(("kubernetes_fleet.yml", "kubernetes_fleet.yaml"))

    def _find(self, cache):
        argv = list(self.get_option("kubectl"))
        for option in ("kubeconfig", "context"):
            value = self.templar.template(self.get_option(option))
            argv += [f"--{option}={value}"] if value else []
        argv += ["get", "nodes", "--output=json"]
        argv += ["--selector=" + self.get_option("selector")] if self.get_option("selector") else []
        key = self.get_option("cache") and "muster_kubernetes_" + hashlib.sha256(json.dumps(argv).encode()).hexdigest()[:32]
        self._place(self._cached(key, cache, lambda: (hosts_of(self._run(argv)), True)), "kubernetes_nodes")

    def _run(self, argv):
        argv = [*argv, f"--request-timeout={self.get_option('timeout')}s"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=self.get_option("timeout") + 10, check=False)
        except FileNotFoundError as error:
            raise KubernetesError(f"{argv[0]} is not installed here; role cloud_tools installs kubectl.") from error
        except subprocess.TimeoutExpired as error:
            raise KubernetesError(f"kubectl gave no answer in {self.get_option('timeout')} s; look at the cluster's endpoint.") from error
        if done.returncode:
            said = (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1].rstrip(".")
            expired = "nauthorized" in said or "expired" in said
            raise KubernetesError(
                f"kubectl get nodes failed: {said}; {'log in again' if expired else 'look at the kubeconfig and its context'}."
            )
        return done.stdout
