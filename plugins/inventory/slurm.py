# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: slurm
short_description: The nodes of a Slurm cluster
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Asks C(scontrol) or slurmrestd for all nodes, and makes groups of their partitions, states, features, GPU types and switches.
  - A feature that is the name of an instance type gives the groups that Muster's playbooks use, as C(muster.fleet.aws_fleet) does.
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [muster.fleet.slurm]
  command:
    description: The words that run scontrol, such as V([ssh, head-1, scontrol]). Not used with O(url).
    type: list
    elements: str
    default: [scontrol]
  url:
    description: Address of slurmrestd, such as V(http://head-1:6820).
    type: str
    default: ""
  api_version:
    description: The version of slurmrestd's API.
    type: str
    default: v0.0.41
  user:
    description: The user of the token.
    type: str
    default: slurm
  token_env:
    description: The environment variable that holds the token of slurmrestd, which C(scontrol token) prints.
    type: str
    default: SLURM_JWT
  topology:
    description: Whether to ask C(scontrol show topology) for the switches above each node. Not with O(url).
    type: bool
    default: false
  partitions:
    description: Only nodes of these partitions.
    type: list
    elements: str
    default: []
  states:
    description: Only nodes in one of these states, such as V(idle).
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for an answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
# slurm.yml: the idle nodes of a partition, by way of the login node
plugin: muster.fleet.slurm
command: [ssh, login-1, scontrol]
partitions: [main]
states: [idle]
topology: true

# by slurmrestd, with `export $(scontrol token)`
# plugin: muster.fleet.slurm
# url: http://head-1:6820
"""

import hashlib
import json
import os
import subprocess
import urllib.error

from ansible.module_utils.urls import open_url

from ansible_collections.muster.fleet.plugins.module_utils.slurm.text import SlurmError
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory import FleetInventory
from ansible_collections.muster.fleet.plugins.plugin_utils.slurm_hosts import hosts_of

TRIES = 3


class InventoryModule(FleetInventory):
    """Hosts from Slurm."""

    NAME = "muster.fleet.slurm"

    def verify_file(self, path):
        """Accept files called slurm.yml or ending in .slurm.yml."""
        return super().verify_file(path) and path.endswith(("slurm.yml", "slurm.yaml"))

    def _find(self, cache):
        asked = {name: self.get_option(name) for name in ("command", "url", "api_version", "topology", "partitions", "states")}
        key = self.get_option("cache") and "muster_slurm_" + hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
        self._place(self._cached(key, cache, self._ask), "slurm_nodes")

    def _ask(self):
        url, topology = self.get_option("url"), ""
        if url:
            text, source = self._get(f"{url.rstrip('/')}/slurm/{self.get_option('api_version')}/nodes"), "slurmrestd"
        else:
            text, source = self._run("show", "nodes", "--json"), "scontrol"
            topology = self._run("show", "topology") if self.get_option("topology") else ""
        states = [each.lower() for each in self.get_option("states")]
        return hosts_of(text, topology, source, self.get_option("partitions"), states), True

    def _run(self, *words):
        argv = [*self.get_option("command"), *words]
        said = ""
        for _try in range(TRIES):
            try:
                done = subprocess.run(argv, capture_output=True, text=True, timeout=self.get_option("timeout"), check=False)
            except FileNotFoundError as error:
                raise SlurmError(
                    f"{argv[0]} is not installed here; name a host with Slurm's commands: command: [ssh, HOST, scontrol]."
                ) from error
            except subprocess.TimeoutExpired as error:
                raise SlurmError(f"{' '.join(argv)} gave no answer in {self.get_option('timeout')} s; look at scontrol ping.") from error
            if done.returncode == 0:
                return done.stdout
            said = (done.stderr.strip() or done.stdout.strip() or f"code {done.returncode}").splitlines()[-1]
            if "Unable to contact" not in said and "timed out" not in said:
                break
        raise SlurmError(f"{' '.join(argv)} failed: {said.rstrip('.')}; look at scontrol ping.")

    def _get(self, url):
        token = os.environ.get(self.get_option("token_env"), "")
        if not token:
            raise SlurmError(f"The variable {self.get_option('token_env')} has no token for slurmrestd; run export $(scontrol token).")
        headers = {"X-SLURM-USER-NAME": self.get_option("user"), "X-SLURM-USER-TOKEN": token}
        for left in reversed(range(TRIES)):
            try:
                with open_url(url, headers=headers, timeout=self.get_option("timeout")) as answer:
                    return answer.read().decode(errors="replace")
            except urllib.error.HTTPError as error:
                if error.code in (401, 403):
                    raise SlurmError(f"slurmrestd refuses the token ({error.code}); run export $(scontrol token) again.") from error
                if error.code == 404:
                    raise SlurmError(f"slurmrestd has no {url}; name its version in api_version.") from error
                if error.code < 500 or not left:
                    raise SlurmError(f"slurmrestd answers {url} with {error.code}; look at its log.") from error
            except OSError as error:
                if not left:
                    raise SlurmError(
                        f"slurmrestd cannot be reached at {url} ({getattr(error, 'reason', error)}); is it running?"
                    ) from error
        raise SlurmError(f"slurmrestd gave no answer at {url}; look at its log.")
