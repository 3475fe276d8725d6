#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: kubernetes_job
short_description: Run a job on Kubernetes, once
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Applies a PyTorchJob, TrainJob, MPIJob or JobSet by server-side apply, waits for its end and keeps logs and result on this host.
  - Uses the context that O(target) names and no other.
extends_documentation_fragment:
  - muster.fleet.job
  - muster.fleet.job.service
requirements:
  - kubernetes
"""

EXAMPLES = r"""
- name: Train on two nodes and wait for the end
  muster.fleet.kubernetes_job:
    job:
      name: train
      command: [python, -m, trainer, train, --max_steps, "200"]
      image: registry.example.com/trainer:1
      nodes: 2
      procs_per_node: 8
      launcher: {kind: pytorchjob}
    target:
      context: my-cluster
      namespace: training
      instance_type: p5.48xlarge
"""

RETURN = r"""
result:
  description: V(muster.job_result/1), as M(muster.fleet.slurm_job) returns it, with Slurm's words for states. Its values stand beside it
    as well. The exit status of a failed job is that of the rank that failed first, and V(failed_rank) its number, where a log names it.
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
checkpoints:
  description: The job's folder on the volume of the checkpoints, as its containers see it.
  returned: always but for a wrong document
  type: str
  sample: /checkpoints/train-2f604121ef80
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
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.jobs import kubernetes
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES, JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes_run import Kubernetes, run_of
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import SERVICE_OPTIONS, run_in_service
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, connection


def main():
    module = AnsibleModule(argument_spec=SERVICE_OPTIONS, supports_check_mode=True)

    def make(document, identity, target, common):
        request = connection(target["kubeconfig"], target["context"], "kubernetes_job")
        return Kubernetes(request=request, manifest=kubernetes.render(document, identity, target), document=document, **common)

    def refine(target, store, document, identity):
        target["run"] = run_of(store, module.params["rerun"], time.strftime("%Y%m%d%H%M%S", time.gmtime()))
        return {"checkpoints": kubernetes.folder_of(kubernetes.render(document, identity, target)["metadata"])}

    run_in_service(module, KUBERNETES, make, (JobError, ApiError), refine)


if __name__ == "__main__":
    main()
