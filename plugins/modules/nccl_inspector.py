#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_inspector
short_description: Summarise what NCCL's inspector wrote of a job
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads the files that the profiler plugin of NCCL 2.28 and later writes, one for each process, with a JSON object a line.
  - Returns the bus bandwidth of each collective and size, by host, and the rank that was slowest.
  - A line that cannot be read, such as the last one of a process that was killed, is counted.
attributes:
  check_mode:
    support: full
    description: Only reads.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  folder:
    description: The folder, C(NCCL_INSPECTOR_DUMP_DIR) of the job.
    type: path
    required: true
  expect_ranks:
    description: The number of ranks that must have written lines. Without it, what the lines say.
    type: int
"""

EXAMPLES = r"""
- name: Read what NCCL's inspector wrote
  muster.fleet.nccl_inspector:
    folder: /fsx/muster/jobs/all-reduce/nccl-inspector-0
    expect_ranks: 16
  register: inspector
"""

RETURN = r"""
schema:
  description: The name and version of this document.
  type: str
  returned: always
  sample: muster.nccl_inspector/1
status:
  description: V(passed), or V(not_run) when the files do not show every rank.
  type: str
  returned: always
reason:
  description: Why V(not_run).
  type: str
  returned: always
files:
  description: Number of files.
  type: int
  returned: always
lines:
  description: Number of lines.
  type: int
  returned: always
damaged:
  description: Number of lines that could not be read. RV(examples) has the first ones.
  type: int
  returned: always
examples:
  description: File, line and reason of the first damaged lines.
  type: list
  elements: str
  returned: always
point_to_point:
  description: Number of lines of sends and receives, which are counted and no more.
  type: int
  returned: always
communicators:
  description: Number of communicators that have lines of collectives.
  type: int
  returned: always
ranks:
  description: Number of ranks with lines, of the communicator that has most.
  type: int
  returned: always
hosts:
  description: Hosts with lines.
  type: list
  elements: str
  returned: always
rows:
  description: >-
    For each collective, size (bytes as nccl-tests counts them) and number of ranks the number of calls, the median of the bus bandwidth in
    GB/s, that of each host, the slowest rank, and what measured the time, such as C(kernel_gpu).
  type: list
  elements: dict
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_inspector import summary


def files(folder):
    """Name and lines of each file, a line at a time, because a file may be large."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".log"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as handle:
                yield name, handle


def main():
    module = AnsibleModule(
        argument_spec={"folder": {"type": "path", "required": True}, "expect_ranks": {"type": "int"}}, supports_check_mode=True
    )
    try:
        document = summary(files(module.params["folder"]), module.params["expect_ranks"])
    except OSError as error:
        module.fail_json(msg="%s cannot be read: %s." % (error.filename, error.strerror))
    module.exit_json(changed=False, **document)


if __name__ == "__main__":
    main()
