#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_results
short_description: Read and judge the output of a collective test
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads the tables that nccl-tests (C(all_reduce_perf) and its siblings) and C(python -m trainer.collectives) print.
  - Judges each row by itself, and never the average line. The test passes when it ended, no value is wrong, every requested size
    was measured, the rank count is proven by busbw/algbw, and every expected host took part.
  - Fails when the verdict is V(failed). The whole document is returned then as well.
  - An output that stand-ins of a rehearsal printed is V(not_run). The task fails when it would have failed.
attributes:
  check_mode:
    support: full
    description: Only reads.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  content:
    description: The output. One of O(content) and O(path) is needed.
    type: str
  path:
    description: A file with the output, on the host where the module runs.
    type: path
  collective:
    description: The collective that was run, such as V(all_reduce). Needed where the output does not name it.
    type: str
    choices: [all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, gather, scatter, broadcast, reduce, sendrecv, hypercube]
  datatype:
    description: The data type that must have been measured, as nccl-tests names it.
    type: str
    version_added: 0.5.0
  expect_hosts:
    description: Hosts that must have run a rank. Names are compared up to their first dot.
    type: list
    elements: str
    default: []
  host_names:
    description: The node of each host that the output names, where that is another name, such as that of a pod.
    type: dict
    default: {}
    version_added: 0.5.0
  expect_ranks:
    description: The number of ranks that must have run as one job. Without it, the ranks that the output lists.
    type: int
  min_bytes:
    description: The smallest size that must have been measured. Without it, the size that the output names.
    type: int
  max_bytes:
    description: The largest size that must have been measured. Without it, the size that the output names.
    type: int
  step_factor:
    description: The factor between two sizes. Without it, the step that the output names, or else 2.
    type: int
  floors:
    description: Bandwidths that every row from a size on must reach.
    type: list
    elements: dict
    default: []
    suboptions:
      min_size:
        description: The floor holds for this size (bytes) and larger ones.
        type: int
        required: true
      busbw:
        description: The least bus bandwidth in GB/s.
        type: float
        required: true
      placement:
        description: The floor holds for this half of the table. Without it, for both.
        type: str
        choices: [out_of_place, in_place]
      collective:
        description: The floor holds for this collective. Without it, for all of the output.
        type: str
  instance_type:
    description:
      - The nodes' EC2 instance type. Its published bandwidths in the catalogue become floors, unless O(floors) has one for the collective.
      - What its NVLink and its network carry becomes the ceiling. A row above the ceiling did not cross the wires, so it fails.
      - A collective, type, data type or number of nodes without a published bandwidth fails nothing; RV(remarks) says so.
      - The figures judge a run of all GPUs of each node.
    type: str
  nodes:
    description: The number of nodes. Without it, the number of O(expect_hosts), or of the hosts that the output lists.
    type: int
  fail_below:
    description: The part of a published bandwidth below which a row fails.
    type: float
    default: 0.90
  warn_below:
    description: The part of a published bandwidth below which RV(remarks) names the row.
    type: float
    default: 0.95
  inspector:
    description: >-
      What M(muster.fleet.nccl_inspector) returned of the same job. It becomes RV(inspector) and a remark of the table of its collective. It
      changes no verdict.
    type: dict
    version_added: 0.5.0
"""

EXAMPLES = r"""
- name: Judge a collective test
  muster.fleet.nccl_results:
    path: /fsx/muster/jobs/all-reduce/output.txt
    expect_hosts: [compute-1, compute-2]
    expect_ranks: 2
    min_bytes: 1024
    max_bytes: 16777216
  register: result

- name: Hold the bandwidths to what was published for the type
  muster.fleet.nccl_results:
    path: /fsx/muster/jobs/all-reduce/output.txt
    expect_hosts: [compute-1, compute-2]
    expect_ranks: 16
    instance_type: p5.48xlarge

- name: Ask for a bandwidth as well, and keep the document of a failed test
  muster.fleet.nccl_results:
    content: "{{ job.output }}"
    expect_ranks: 16
    floors:
      - {min_size: 8589934592, busbw: 430}
  register: result
  failed_when: false # whoever reads result.verdict decides
"""

RETURN = r"""
schema:
  description: The name and version of this document.
  type: str
  returned: always
  sample: muster.nccl_results/1
verdict:
  description: V(passed) or V(failed), over all tables; V(not_run) when stand-ins printed the output.
  type: str
  returned: always
  sample: passed
rehearsed:
  description: What the verdict would have been, V(passed) or V(failed).
  type: str
  returned: when stand-ins printed the output
stand_ins:
  description: The programs that printed the output and measured nothing.
  type: list
  elements: str
  returned: when stand-ins printed the output
reasons:
  description: One sentence per finding; empty when passed.
  type: list
  elements: str
  returned: always
remarks:
  description: One sentence per finding that fails nothing, such as a row below O(warn_below). Each is a warning of the task, too.
  type: list
  elements: str
  returned: always
instance_type:
  description: O(instance_type).
  type: str
  returned: always
nodes:
  description: O(nodes).
  type: int
  returned: always
inspector:
  description: O(inspector).
  type: dict
  returned: with O(inspector)
failed_hosts:
  description: Hosts whose processes reported a failure of CUDA, NCCL or a time limit.
  type: list
  elements: str
  returned: always
tables:
  description: One table per collective that the output holds, in its order.
  type: list
  elements: dict
  returned: always
  contains:
    collective:
      description: Which collective, or none where it is unknown.
      type: str
    ranks:
      description: Ranks that the output lists, or none where it lists none.
      type: int
    ranks_missing:
      description: Ranks below the highest one that the list of ranks lacks, which means that it was cut.
      type: list
      elements: int
    ranks_proven:
      description: The rank count that the bandwidths prove, or none.
      type: int
    hosts:
      description: Hosts that ran a rank.
      type: list
      elements: str
    rows:
      description: Each size and placement with its time (us), algbw and busbw (GB/s), number of wrong values, and why it fails.
      type: list
      elements: dict
    damaged:
      description: Rows that could not be read, by line and reason.
      type: list
      elements: dict
    floors:
      description:
        - What the rows were compared with, in the order of sizes. A floor judges the sizes from C(min_size) up to C(below).
        - Less than C(floor) fails, less than C(warn) is a remark. C(source) says where the figure comes from.
      type: list
      elements: dict
    ceiling:
      description: The bus bandwidth (GB/s) that the wires can carry, or none.
      type: float
    copies:
      description: How often the output lists rank 0. More than once means that processes ran alone.
      type: int
    failed_hosts:
      description: As above, for the whole output.
      type: list
      elements: str
    remarks:
      description: The findings on this table that fail nothing.
      type: list
      elements: str
    verdict:
      description: As above, of this table; and so is C(rehearsed).
      type: str
    reasons:
      description: The findings on this table.
      type: list
      elements: str
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import inspected, judge, refused, rehearsed
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import COLLECTIVES, ResultsError, parse
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal


def renamed(text, names):
    """The output with other names of hosts in the lines of its ranks (# Rank 0 … on HOST device 0)."""
    return re.sub(r"(?m)^(#.* on +)(\S+)(?= +device )", lambda found: found[1] + names.get(found[2], found[2]), text)


def main():
    floor = {
        "min_size": {"type": "int", "required": True},
        "busbw": {"type": "float", "required": True},
        "placement": {"type": "str", "choices": ["out_of_place", "in_place"]},
        "collective": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "content": {"type": "str"},
            "path": {"type": "path"},
            "collective": {"type": "str", "choices": [*COLLECTIVES]},
            "datatype": {"type": "str"},
            "expect_hosts": {"type": "list", "elements": "str", "default": []},
            "host_names": {"type": "dict", "default": {}},
            "expect_ranks": {"type": "int"},
            "min_bytes": {"type": "int"},
            "max_bytes": {"type": "int"},
            "step_factor": {"type": "int"},
            "floors": {"type": "list", "elements": "dict", "default": [], "options": floor},
            "instance_type": {"type": "str"},
            "nodes": {"type": "int"},
            "fail_below": {"type": "float", "default": 0.90},
            "warn_below": {"type": "float", "default": 0.95},
            "inspector": {"type": "dict"},
        },
        required_one_of=[("content", "path")],
        mutually_exclusive=[("content", "path")],
        supports_check_mode=True,
    )
    asked = module.params
    text = asked["content"]
    if text is None:
        try:
            text = read_text(asked["path"])
        except OSError as error:
            module.fail_json(msg="%s cannot be read (%s): name the file with the test's output." % (asked["path"], error.strerror))
    names = (
        "collective",
        "datatype",
        "min_bytes",
        "max_bytes",
        "step_factor",
        "floors",
        "instance_type",
        "nodes",
        "fail_below",
        "warn_below",
    )
    expect = {name: asked[name] for name in names}
    expect.update(hosts=asked["expect_hosts"], ranks=asked["expect_ranks"])
    try:
        document = judge(parse(renamed(text, asked["host_names"]), asked["collective"]), expect)
    except ResultsError as error:
        document = refused(error, expect)
    except CatalogueError as error:
        module.fail_json(msg=str(error))
    # A registered result has the state of its task as well.
    inspector = {key: value for key, value in (asked["inspector"] or {}).items() if key not in ("changed", "failed", "warnings")}
    document = inspected(rehearsed(document, rehearsal.named(text)), inspector, asked["warn_below"])
    for remark in document["remarks"][:5]:
        module.warn(remark)
    if "failed" in (document["verdict"], document.get("rehearsed")):
        module.fail_json(msg="; ".join(document["reasons"][:5]), changed=False, **document)
    module.exit_json(changed=False, **document)


if __name__ == "__main__":
    main()
