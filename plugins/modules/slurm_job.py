#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: slurm_job
short_description: Run a job through Slurm, once
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Submits a job as an ordinary user, waits for its end and keeps its result on the shared file system. Runs on a host with Slurm's
    commands, such as the controller or a login node.
  - The controller may restart while the module waits. A job that waits for something that cannot come, such as a partition that is
    down, is cancelled and reported at once.
extends_documentation_fragment:
  - muster.fleet.job
options:
  job:
    description:
      - A job document, V(muster.job/1). One of O(job) and O(script) is needed unless the job is named only to cancel it.
      - Its C(gpus_per_node) is V(all), every GPU of its nodes, if not given; with V(0) it sees none. Each rank sees all GPUs of the job.
    type: dict
  script:
    description: The text of a batch script. Its C(#SBATCH) lines are kept, but for the name and the output, which belong to the store.
    type: str
  name:
    description: The name of the job. Needed with O(script); a document has its own.
    type: str
  user:
    description: The user who submits. The module becomes that user, so it runs as root or as the user itself.
    type: str
    default: muster
  store:
    description: Folder on the shared file system that keeps a folder for each job.
    type: path
    default: /fsx/muster/jobs
  stop_at:
    description:
      - Times at which nodes are taken away, such as the end of a capacity block. The earliest that has not passed is the job's
        C(MUSTER_STOP_AT), unless its time limit ends it before.
      - They do not make it another job. A batch script does not get them.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Train on two nodes and wait for the end
  muster.fleet.slurm_job:
    job:
      name: train
      command: [python, -m, trainer, train, --max_steps, "200"]
      venv: /fsx/venv
      nodes: 2
      time_limit: 30
      retries: 2
      secrets:
        HF_TOKEN: {from: file, path: /fsx/home/muster/.hf_token}
      launcher: {kind: slurm, mpi: none}
  register: train

- name: Run a batch script
  muster.fleet.slurm_job:
    name: hello
    script: |
      #!/bin/bash
      #SBATCH --nodes=2 --time=5
      srun hostname

- name: End the training
  muster.fleet.slurm_job:
    job: "{{ train_job }}"
    state: cancelled
"""

RETURN = r"""
schema:
  description: V(muster.job_result/1). This and the following values are the content of result.json in the store.
  returned: when the job is known to Slurm or to the store
  type: str
  sample: muster.job_result/1
name:
  description: Name of the job.
  returned: when the job is known
  type: str
  sample: train
identity:
  description: The sha256 of the job document.
  returned: when the job is known
  type: str
  sample: 2f604121ef80d5f6c0bd4cf1c1fdc1f0a3f1cfe36a3bbd4b34a5a2a7a5ae5d1c
job_id:
  description: Slurm's number of the job.
  returned: when the job is known
  type: int
  sample: 48
state:
  description: Slurm's state of the job.
  returned: when the job is known
  type: str
  sample: COMPLETED
reason:
  description: Why the job is in that state, in Slurm's words.
  returned: when the job is known
  type: str
  sample: None
exit_code:
  description: Exit status of the batch script, or of the rank in RV(failed_rank); 128 and the signal when a signal ended it.
  returned: when the job is known
  type: int
  sample: 0
failed_rank:
  description: The rank that failed first.
  returned: when the job failed and torchrun names the rank in the output
  type: int
  sample: 1
nodes:
  description: The nodes that the job ran on.
  returned: when the job is known
  type: list
  elements: str
  sample: [compute-1, compute-2]
gpus_per_node:
  description: How many GPUs the job asked for on each node.
  returned: when the job is known
  type: int
  sample: 8
submitted:
  description: When it was submitted, in UTC.
  returned: when the job is known
  type: str
  sample: "2026-11-21T10:51:30Z"
started:
  description: When its last run started, in UTC.
  returned: when the job is known
  type: str
  sample: "2026-11-21T10:51:31Z"
ended:
  description: When it ended, in UTC.
  returned: when the job is known
  type: str
  sample: "2026-11-21T10:53:31Z"
elapsed_s:
  description: Seconds that its last run took.
  returned: when the job is known
  type: int
  sample: 120
restarts:
  description: How often Slurm requeued it.
  returned: when the job is known
  type: int
  sample: 0
output:
  description: File with the output of the job.
  returned: when the job is known
  type: str
  sample: /fsx/muster/jobs/train-2f604121ef80/output.txt
ready:
  description: How many nodes of the job run.
  returned: when O(state=queried) and the job waits or runs
  type: int
  sample: 2
stored:
  description: Whether the result is that of an earlier call.
  returned: when the job is known
  type: bool
  sample: false
result:
  description: The values above in one mapping, as a run folder keeps them; empty while the job is unknown.
  returned: always but for a wrong document
  type: dict
  sample: {}
folder:
  description: The job's folder in the store.
  returned: always
  type: str
  sample: /fsx/muster/jobs/train-2f604121ef80
document:
  description: The job document with its defaults filled in.
  returned: when O(job) is given
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
  sample: /fsx/muster/jobs/train-2f604121ef80/output.txt
"""

import hashlib
import json
import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import sbatch
from ansible_collections.muster.fleet.plugins.module_utils.jobs import slurm as slurm_job
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import OPTIONS, answer, load, settings
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm


def main():
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "job": {"type": "dict"},
            "script": {"type": "str"},
            "name": {"type": "str"},
            "user": {"type": "str", "default": "muster"},
            "store": {"type": "path", "default": "/fsx/muster/jobs"},
            "stop_at": {"type": "list", "elements": "str", "default": []},
        },
        mutually_exclusive=[("job", "script"), ("job", "name")],
        required_one_of=[("job", "script")],
        required_by={"script": ("name",)},
        supports_check_mode=True,
    )
    params = module.params
    try:
        user = pwd.getpwnam(params["user"])
    except KeyError:
        module.fail_json(msg="The user %s does not exist on this host; create it or name another one." % params["user"])
    if os.geteuid() not in (0, user.pw_uid):
        module.fail_json(msg="Only root can submit as %s; run the task with become, or as that user." % params["user"])

    def run(argv, as_user):
        # A job must not depend on its caller, so it gets the environment of a new login and nothing of this process.
        if as_user:
            names = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
            become = ["runuser", "-u", user.pw_name, "--"] if os.geteuid() != user.pw_uid else []
            argv = [*become, "env", "-i", *("%s=%s" % item for item in names.items()), "LANG=C.UTF-8", *argv]
        return module.run_command(argv, environ_update=slurm.ENVIRONMENT)

    facts = {}
    try:
        if params["job"] is not None:
            document = load(params["job"], ("slurm",))
            name, identity = document["name"], documents.identity(document)
            facts["document"] = document
        else:
            name = params["name"]
            documents.check_name(name)
            identity = hashlib.sha256(documents.canonical({"name": name, "script": params["script"]}).encode()).hexdigest()
        folder = os.path.join(params["store"], "%s-%s" % (name, identity[:12]))
        facts["folder"] = folder
        store = jobs.Store(folder, user.pw_uid, user.pw_gid)
        runner = slurm_job.Slurm(
            run=run,
            name=name,
            identity=identity,
            store=store,
            user=user.pw_name,
            **settings(params),
        )
        gpus = {}
        if params["job"] is not None:
            if document["gpus_per_node"]:
                gpus = runner.gpus(document["launcher"]["partition"])
            script = sbatch.render_sbatch(document, identity, folder, params["stop_at"], documents.gpus_per_node(document, gpus))
            files = {"job.json": json.dumps(document, indent=1) + "\n", "job.sbatch": script}
            options = []
        else:
            files = {"job.sbatch": params["script"]}
            options = sbatch.store_options(name, identity, folder)

        def check():
            if params["job"] is not None:
                documents.check_gpus(document, gpus)
                documents.check_fits(document, slurm.cpus_of(runner.nodes(), document["launcher"]["partition"]))
                for secret, path in documents.shared_secrets(document, params["store"]).items():
                    if run(["test", "-r", path], True)[0]:
                        raise documents.JobError(
                            "Job %s: user %s cannot read %s, the file of its secret %s; create it, or change its owner or mode."
                            % (name, user.pw_name, path, secret)
                        )

        answer(module, facts, runner, files, "job.sbatch", options=options, check=check)
    except (documents.JobError, slurm.SlurmError) as error:
        module.fail_json(msg=str(error), **facts)


if __name__ == "__main__":
    main()
