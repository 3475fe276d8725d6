#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: sagemaker_job
short_description: Run a training job on SageMaker, once
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Creates a training job, waits for its end and keeps log and result on this host.
extends_documentation_fragment:
  - muster.fleet.job
  - muster.fleet.job.service
  - muster.fleet.aws
"""

EXAMPLES = r"""
- name: Train on two instances and wait for the end
  muster.fleet.sagemaker_job:
    job:
      name: train
      command: [bash, /opt/ml/input/data/code/train.sh]
      image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/trainer:1
      nodes: 2
      procs_per_node: 8
      launcher:
        channels: {code: s3://my-bucket/code, c4: {uri: s3://my-bucket/c4, mode: FastFile}}
    target:
      instance_type: p4d.24xlarge
      role: arn:aws:iam::123456789012:role/training
      output: s3://my-bucket/jobs
    region: us-east-1
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

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region
from ansible_collections.muster.fleet.plugins.module_utils.jobs import sagemaker
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import SERVICE_OPTIONS, run_in_service


def main():
    module = AnsibleModule(argument_spec={**ARGUMENTS, **SERVICE_OPTIONS}, supports_check_mode=True)

    def make(document, identity, target, common):
        region = Region(Accounts(module.params, who="sagemaker_job"), module.params["region"] or target["region"])
        return sagemaker.SageMaker(region=region, request=sagemaker.render(document, identity, target), document=document, **common)

    run_in_service(module, ("sagemaker",), make, (JobError, AwsError))


if __name__ == "__main__":
    main()
