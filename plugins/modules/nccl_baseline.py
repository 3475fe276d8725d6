#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_baseline
short_description: Record what the collectives of a fleet reach, or compare a run with it
version_added: 0.5.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads the verdicts (C(nccl.json)) of jobs in a run folder. Records their bus bandwidths by image, stack, instance type, number of nodes,
    collective, data type and size, or compares them with what was recorded.
  - A baseline of another instance type or stack is refused. One of another image is compared, because that shows what the image changed.
  - Results that were stored before this run, and those that stand-ins of a rehearsal printed, count as not measured.
attributes:
  check_mode:
    support: full
    description: Compares as always, and does not write.
  diff_mode:
    support: none
    description: The file is too long for a diff.
options:
  path:
    description: The file of the baseline.
    type: path
    required: true
  state:
    description: Whether to record or to compare.
    type: str
    choices: [recorded, compared]
    required: true
  run_dir:
    description: The run folder.
    type: path
    required: true
  jobs:
    description: Names of its jobs.
    type: list
    elements: str
    required: true
  hosts:
    description: The C(image) and C(stack) of each host.
    type: dict
    required: true
  required:
    description: Whether a measurement that cannot be compared fails. Otherwise it is a remark.
    type: bool
    default: false
  fail_below:
    description: The part of the baseline's busbw below which a point fails.
    type: float
    default: 0.90
  warn_below:
    description: The part below which a point is a remark.
    type: float
    default: 0.95
"""

EXAMPLES = r"""
- name: Keep what the collectives reached
  muster.fleet.nccl_baseline:
    path: /srv/muster/training/nccl_baseline.json
    state: recorded
    run_dir: runs/training/latest
    jobs: [nccl-all_reduce]
    hosts:
      compute-1: {image: ami-0123456789abcdef0, stack: aws-2026.11 3f0c…}
      compute-2: {image: ami-0123456789abcdef0, stack: aws-2026.11 3f0c…}
"""

RETURN = r"""
verdict:
  description: V(recorded), or V(passed), V(failed) or V(not_run) of a comparison.
  type: str
  returned: always
reasons:
  description: Sentences on what fails.
  type: list
  elements: str
  returned: always
remarks:
  description: Sentences on what fails nothing.
  type: list
  elements: str
  returned: always
compared:
  description:
    - Each comparison with its C(hosts), C(image), the image it was compared C(against), whether it C(fell), how many C(points) were judged,
      whether it C(failed), and what is C(said) of it.
  type: list
  elements: dict
  returned: always
muster_message:
  description: A line for the summary of the run.
  type: str
  returned: always
"""

import json
import os
from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.health import nccl_baseline as logic


def read(path, missing):
    """The JSON object of a file; raises BaselineError."""
    try:
        text = read_text(path, "")
        found = json.loads(text) if text else missing
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        raise logic.BaselineError("%s is not a JSON object: remove it, or put an earlier copy back." % path) from None
    except OSError as error:
        raise logic.BaselineError("%s cannot be read (%s): change its mode or its owner." % (path, error.strerror)) from None
    return found


def measured(run_dir, jobs):
    """({job: verdict}, [jobs whose result was stored before this run])."""
    folders = {job: os.path.join(run_dir, "jobs", job) for job in jobs}
    stored = [job for job, folder in folders.items() if read(os.path.join(folder, "result.json"), {}).get("stored")]
    return {job: read(os.path.join(folder, "nccl.json"), {}) for job, folder in folders.items() if job not in stored}, stored


def write(path, document):
    part = path + ".part"
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
        os.replace(part, path)
    except OSError as error:
        raise logic.BaselineError(
            "%s cannot be written (%s): make room, or change the owner of its folder." % (path, error.strerror)
        ) from None


def run(asked, check_mode):
    """The result of the module; raises BaselineError."""
    baseline = read(asked["path"], {"entries": []})
    if baseline.get("schema", logic.SCHEMA) != logic.SCHEMA:
        raise logic.BaselineError("%s is no baseline (%s): remove it, or put an earlier copy back." % (asked["path"], baseline["schema"]))
    documents, stored = measured(asked["run_dir"], asked["jobs"])
    entries = logic.entries(documents, asked["hosts"])
    old = ["The results of %s are stored ones: measure again with -e muster_rerun=true." % ", ".join(stored)] if stored else []
    if asked["state"] == "recorded":
        if old:
            raise logic.BaselineError(old[0])
        made = logic.record(baseline, entries, datetime.now(timezone.utc).strftime("%Y-%m-%d"))
        if not check_mode:
            write(asked["path"], made)
        result = {"changed": made != baseline, "verdict": "recorded", "reasons": [], "remarks": [], "compared": []}
        return {**result, "muster_message": "baseline: recorded %s" % ", ".join(map(logic.label, entries))}
    found = logic.compare(baseline, entries, asked["fail_below"], asked["warn_below"])
    refused = old + found.pop("refused")
    if asked["required"] and not (found["compared"] or refused):
        refused = ["This run measured nothing that the baseline could judge: see the verdicts of its jobs."]
    found["reasons" if asked["required"] else "remarks"] += refused
    count = sum(one["points"] for one in found["compared"])
    verdict = "failed" if found["reasons"] else "passed" if count else "not_run"
    say = {"failed": "failed", "passed": "%d points held" % count, "not_run": "nothing was compared"}[verdict]
    return {"changed": False, "verdict": verdict, **found, "muster_message": "baseline: %s" % say}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "required": True, "choices": ["recorded", "compared"]},
            "run_dir": {"type": "path", "required": True},
            "jobs": {"type": "list", "elements": "str", "required": True},
            "hosts": {"type": "dict", "required": True},
            "required": {"type": "bool", "default": False},
            "fail_below": {"type": "float", "default": 0.90},
            "warn_below": {"type": "float", "default": 0.95},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params, module.check_mode)
    except logic.BaselineError as error:
        empty = {"verdict": "failed", "reasons": [str(error)], "remarks": [], "compared": []}
        module.fail_json(msg=str(error), muster_message="baseline: failed", **empty)
    for remark in result["remarks"][:5]:
        module.warn(remark)
    if result["verdict"] == "failed":
        module.fail_json(msg="; ".join(result["reasons"][:5]), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
