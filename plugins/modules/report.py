#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: report
short_description: Write the report of a run from its run folder
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Writes C(report.json) (C(muster.report/1)) and C(report.html), one file that loads nothing over the network, into the run folder. Reads
    that folder alone, so an old run can be reported again.
  - Writes C(junit.xml) with the checks and the points of the collectives, and a C(jobs/JOB/COLLECTIVE.csv) for each table of nccl-tests.
  - The callback plugin P(muster.fleet.run_record#callback) does the same at the end of each run; this module is for folders from elsewhere.
attributes:
  check_mode:
    support: full
    description: Reads the folder and reports whether the report would change.
  diff_mode:
    support: none
    description: The report is too long for a diff.
options:
  run_dir:
    description: The run folder, such as C(runs/local/latest).
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write the report of the last run again
  muster.fleet.report:
    run_dir: "{{ playbook_dir }}/runs/local/latest"
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: V(passed), V(failed), or V(unfinished) when the run has not ended or was killed.
  type: str
  returned: success
  sample: passed
summary:
  description: The run in at most ten lines.
  type: list
  elements: str
  returned: success
path:
  description: The page.
  type: str
  returned: success
  sample: runs/local/20261121T105130Z/report.html
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.report.document import ReportError, build, rendered, summary, write_files


def main():
    module = AnsibleModule(argument_spec={"run_dir": {"type": "path", "required": True}}, supports_check_mode=True)
    folder = Path(module.params["run_dir"])
    try:
        report = build(folder)
        files = rendered(folder, report)
        changed = any(not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text for name, text in files.items())
        if changed and not module.check_mode:
            write_files(folder, files)
    except ReportError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s cannot be used (%s): give a folder that you may read and write." % (folder, error.strerror))
    module.exit_json(changed=changed, verdict=report["run"]["verdict"], summary=summary(report, folder), path=str(folder / "report.html"))


if __name__ == "__main__":
    main()
