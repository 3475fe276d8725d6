# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options of every module that runs a job once; the arguments are in plugins/module_utils/jobs/module.py."""

    DOCUMENTATION = r"""
description:
  - A job is known by the sha256 of its document. While it runs, a second call waits for it. When it has completed, a second call
    returns the stored result and changes nothing. When it failed, a second call fails too, unless O(retry) is given.
  - Nothing is lost when this module is killed while it waits. The job goes on, and the next call finds it again.
attributes:
  check_mode:
    support: full
    description: Says what would be submitted. Asks the service and reads the store.
  diff_mode:
    support: full
    description: Shows what the service is given beside what stands in the store.
options:
  state:
    description:
      - V(finished) waits for the end of the job, V(submitted) returns as soon as the service has it.
      - V(awaited) is V(finished) for a job that was submitted before; it never submits one.
      - V(cancelled) ends the job where it waits or runs. V(queried) says how it is, fetches its output and changes nothing.
    type: str
    choices: [finished, awaited, submitted, cancelled, queried]
    default: finished
  rerun:
    description: Run the job again although a result is stored. A job that waits or runs is not submitted twice.
    type: bool
    default: false
  retry:
    description: Run the job again when the stored result is a failure.
    type: bool
    default: false
  timeout:
    description: Seconds after which the module gives up waiting. The job goes on.
    type: int
    default: 3600
  pending_timeout:
    description: Seconds that the job may wait for what is out of service before it is cancelled.
    type: int
    default: 300
  poll:
    description: Seconds between two queries.
    type: int
    default: 5
"""

    SERVICE = r"""
options:
  job:
    description: A job document, V(muster.job/1).
    type: dict
    required: true
  target:
    description: Where the job runs, as docs/jobs.md says for each launcher. It is no part of the job's identity.
    type: dict
    default: {}
  store:
    description: Folder that keeps a folder for each job, with its output and result.
    type: path
    default: ~/.local/state/muster/jobs
"""
