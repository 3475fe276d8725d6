#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: diagnose
short_description: Find the bad nodes of a fleet by tests of pairs
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Tests pairs of idle nodes side by side with a collective, in rounds, and names the bad nodes and links (docs/diagnose.md).
  - Runs on a host with Slurm's commands, as root. Nodes that run a job, or are out of service, are left alone.
attributes:
  check_mode:
    support: full
    description: Says which pairs the first round would test.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  job:
    description: The job document (V(muster.job/1)) that measures a collective; its number of nodes and its name are replaced.
    type: dict
    required: true
  collective:
    description: The collective, where the output does not name it.
    type: str
  hosts:
    description: The nodes, as names.
    type: list
    elements: str
    required: true
  topology:
    description: Network nodes above each host, the nearest last. Hosts without an entry share one place.
    type: dict
    default: {}
  slow:
    description: A pair below this part of what pairs usually reach is slow.
    type: float
    default: 0.85
  floor:
    description: The bus bandwidth in GB/s that a pair must reach in any case.
    type: float
  across:
    description: Whether a round crosses leaves when all near pairs are well.
    type: bool
    default: true
  rounds:
    description: The most rounds.
    type: int
    default: 8
  limit:
    description: Seconds after which the test of a pair is ended.
    type: int
    default: 120
  start_limit:
    description: Seconds that a pair may wait for Slurm to start it. After that somebody else has its nodes, and they are left alone.
    type: int
    default: 60
  budget:
    description: Seconds for the whole diagnosis.
    type: int
    default: 1800
  user:
    description: The user that the tests run as.
    type: str
    default: muster
  store:
    description: A folder that all nodes share.
    type: path
    default: /fsx/muster/diagnose
"""

EXAMPLES = r"""
- name: Find the bad nodes
  muster.fleet.diagnose:
    job: {name: pair, nodes: 2, procs_per_node: 1, command: [all_reduce_perf, -b, 1G, -e, 1G], launcher: {kind: slurm, mpi: pmix}}
    hosts: [compute-1, compute-2, compute-3, compute-4]
  register: found
"""

RETURN = r"""
diagnosis:
  description: The bad nodes with their evidence, bad links, and what is undecided.
  type: dict
  returned: success
  contains:
    bad:
      description: Nodes that were slow or did not end with all proven partners, with C(evidence).
      type: list
      elements: dict
    links:
      description: Pairs of nodes that are well with others and slow together.
      type: list
      elements: dict
    undecided:
      description: Nodes of which too little is known.
      type: list
      elements: str
    proven:
      description: Nodes that are well.
      type: list
      elements: str
    left_alone:
      description: Nodes that were not tested, and why.
      type: dict
    pairs:
      description: All tests, by rounds. C(well) says how each was judged, and C(kind) is V(near) when both nodes share a leaf.
      type: list
      elements: list
    tests:
      description: How many tests ran.
      type: int
    rehearsed:
      description: Stand-ins that printed the outputs, so that nothing was measured.
      type: list
      elements: str
"""

import os
import pwd
import shutil
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import pairs, sbatch
from ansible_collections.muster.fleet.plugins.module_utils.jobs.module import load
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm


class Tests:
    """The pairs' jobs in Slurm."""

    def __init__(self, module, user, folder):
        self.module, self.user, self.folder = module, user, folder
        self.key = os.path.basename(folder)
        self.gres = None

    def ask(self, *argv):
        rc, out, err = self.module.run_command(list(argv), environ_update=slurm.ENVIRONMENT)
        if rc:
            self.module.fail_json(msg="%s failed: %s; look at the controller: scontrol ping" % (argv[0], err.strip() or out.strip()))
        return out

    def place(self, pair, number):
        return os.path.join(self.folder, "round-%d" % number, "-".join(pair))

    def submit(self, pair, number):
        params = self.module.params
        document = load(pairs.document_of(params["job"], pair, params["limit"]), ("slurm",))
        folder = self.place(pair, number)
        os.makedirs(folder)
        if self.gres is None:
            self.gres = self.ask("sinfo", "-N", "-h", "-a", "-o", slurm.GRES_FORMAT)
        gpus = slurm.gpus_of(self.gres, document["launcher"]["partition"])
        text = sbatch.render_sbatch(document, documents.identity(document), folder, (), documents.gpus_per_node(document, gpus))
        with open(os.path.join(folder, "job.sbatch"), "w", encoding="utf-8") as file:
            file.write(text)
        for path in (os.path.dirname(folder), folder, os.path.join(folder, "job.sbatch")):
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
        env = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + self.user.pw_dir, "USER=" + self.user.pw_name, "LANG=C.UTF-8"]
        argv = ["runuser", "-u", self.user.pw_name, "--", "env", "-i", *env, "sbatch", "--parsable", "--no-requeue"]
        out = self.ask(*argv, "--job-name=" + pairs.JOB_NAME % self.key, os.path.join(folder, "job.sbatch"))
        return out.strip().split(";")[0]

    def queue(self, ids):
        text = self.ask("squeue", "-h", "-a", "--name=" + pairs.JOB_NAME % self.key, "-o", "%i %T")
        found = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        return {job: state for job, state in found.items() if job in ids and state not in slurm.FINAL_STATES}

    def held(self, ids):
        text = self.ask("squeue", "-h", "-a", "--name=" + pairs.JOB_NAME % self.key, "-o", "%i %N")
        rows = [line.split() for line in text.splitlines()]
        return {host for row in rows if len(row) == 2 and row[0] in ids for host in slurm.expand(row[1])}

    def output(self, pair, number):
        return read_text(os.path.join(self.place(pair, number), "output.txt"), "")

    def cancel(self, ids):
        self.module.run_command(["scancel", *ids])


def main():
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "dict", "required": True},
            "collective": {"type": "str"},
            "hosts": {"type": "list", "elements": "str", "required": True},
            "topology": {"type": "dict", "default": {}},
            "slow": {"type": "float", "default": 0.85},
            "floor": {"type": "float"},
            "across": {"type": "bool", "default": True},
            "rounds": {"type": "int", "default": 8},
            "limit": {"type": "int", "default": 120},
            "start_limit": {"type": "int", "default": 60},
            "budget": {"type": "int", "default": 1800},
            "user": {"type": "str", "default": "muster"},
            "store": {"type": "path", "default": "/fsx/muster/diagnose"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        user = pwd.getpwnam(params["user"])
    except KeyError:
        module.fail_json(msg="The user %s does not exist on this host; create it or name another one." % params["user"])
    folder = os.path.join(params["store"], "%d-%d" % (time.time(), os.getpid()))
    tests = Tests(module, user, folder)
    # Slurm knows a host by the first part of its name.
    names = [host.split(".")[0] for host in params["hosts"]]
    places = {host.split(".")[0]: place for host, place in params["topology"].items()}
    left, free = pairs.idle(tests.ask("sinfo", "-N", "-h", "-a", "-o", slurm.SINFO_FORMAT), names)
    try:
        state = diagnose.start(free, places, floor=params["floor"], slow=params["slow"], rounds=params["rounds"], across=params["across"])
        if module.check_mode:
            module.exit_json(changed=False, diagnosis={"pairs": [[list(pair) for pair in diagnose.plan(state)]], "left_alone": left})
        os.makedirs(folder)
        os.chown(folder, user.pw_uid, user.pw_gid)
        rounds = pairs.Rounds(
            submit=tests.submit,
            queue=tests.queue,
            output=tests.output,
            cancel=tests.cancel,
            held=tests.held,
            ranks=2 * int(params["job"].get("procs_per_node") or 1) * ranks_of(params["job"]),
            collective=params["collective"],
            limit_s=params["limit"],
            start_s=params["start_limit"],
            budget_s=params["budget"],
        )
        stopped = rounds.run(state)
    except (diagnose.DiagnoseError, documents.JobError, slurm.SlurmError) as error:
        module.fail_json(msg="%s%s" % (error, "".join(" %s is left alone: %s." % item for item in sorted(left.items())[:5])))
    found = diagnose.verdict(state)
    found.update(
        left_alone={**left, **dict.fromkeys(found["skipped"], pairs.BUSY)},
        rehearsed=rounds.stand_ins,
        size=rounds.largest,
        stopped=stopped,
        between=rounds.between,
    )
    shutil.rmtree(folder, ignore_errors=True)
    module.exit_json(changed=False, diagnosis=found)


def ranks_of(job):
    """GPUs of one process: -g of nccl-tests."""
    command = [str(word) for word in job.get("command") or []]
    return int(command[command.index("-g") + 1]) if "-g" in command and "-b" in command else 1


if __name__ == "__main__":
    main()
