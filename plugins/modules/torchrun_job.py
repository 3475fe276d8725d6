#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: torchrun_job
short_description: Run a job by torchrun on plain hosts, once
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Starts torchrun on hosts of the inventory over SSH. The ranks of a host are a systemd unit, so that they outlive the connection.
  - Waits for the end and keeps the outputs and the result on this host, which runs the C(ssh) commands of O(target).
extends_documentation_fragment:
  - muster.fleet.job
  - muster.fleet.job.service
"""

EXAMPLES = r"""
- name: Train on two hosts and wait for the end
  muster.fleet.torchrun_job:
    job:
      name: train
      command: [python, -m, trainer, train, --max_steps, "200"]
      venv: /opt/venv
      nodes: 2
      procs_per_node: 8
    target:
      instance_type: p5.48xlarge
      hosts: "{{ groups['muster_compute'] | muster.fleet.job_hosts(hostvars) }}"
"""

RETURN = r"""
result:
  description: V(muster.job_result/1), as M(muster.fleet.slurm_job) returns it, with Slurm's words for states. Its values stand beside it
    as well. The exit status of a failed job is that of the rank that failed first, and V(failed_rank) its number, where an output names it.
  returned: always but for a wrong document
  type: dict
  sample: {state: COMPLETED, exit_code: 0, restarts: 0}
folder:
  description: The job's folder in the store.
  returned: always but for a wrong document
  type: str
  sample: /home/ann/.local/state/muster/local/jobs/train-2f604121ef80
document:
  description: The job document with its defaults filled in.
  returned: always but for a wrong document
  type: dict
  sample: {}
remedy:
  description: What to do about a failure.
  returned: failure
  type: str
  sample: raise time_limit or ask for less work
log:
  description: The output of a job that failed.
  returned: failure
  type: str
  sample: /home/ann/.local/state/muster/local/jobs/train-2f604121ef80/output.txt
"""
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.jobs import torchrun
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import SERVICE_OPTIONS, run_in_service


def main():
    module = AnsibleModule(argument_spec=SERVICE_OPTIONS, supports_check_mode=True)

    def make(document, identity, target, common):
        nodes = torchrun.render(document, identity, target)
        return torchrun.Hosts(run=torchrun.command, nodes=nodes, target=target, unit=torchrun.unit_name(document, identity), **common)

    def refine(target, store, document, identity):
        torchrun.again(target, store.stored(), store.read("hostfile"))
        return {}

    run_in_service(module, ("torchrun",), make, (JobError,), refine)


if __name__ == "__main__":
    main()
