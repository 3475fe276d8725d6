#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: storage_speed
short_description: Measure how fast a node writes to the shared file system and reads from it
version_added: 0.4.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Runs fio with four processes past the page cache, first writing and then reading, for O(seconds) each and with 1 GiB of files, which it
    removes. The other jobs of the fleet are slower meanwhile.
  - Says why it could not, and fails for none, because the nodes are judged together (P(muster.fleet.storage_verdicts#filter)).
options:
  path:
    description: A folder of the file system. The files are in a folder of this host's in it.
    type: path
    required: true
  seconds:
    description: How long to write, and how long to read.
    type: int
    default: 10
  begin:
    description: When to begin, in seconds since the epoch, so that all nodes measure at the same time. A time that is past begins at once.
    type: float
    default: 0
attributes:
  check_mode:
    description: Measures nothing and says so.
    support: full
  diff_mode:
    description: Nothing stays that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: Measure the shared file system
  muster.fleet.storage_speed:
    path: /fsx
"""

RETURN = r"""
write:
  description: MB/s written.
  type: float
  returned: when it was measured
read:
  description: MB/s read.
  type: float
  returned: when it was measured
reason:
  description: Why nothing was measured.
  type: str
  returned: always
"""

import os
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node import storage_speed as logic

LONGEST_WAIT = 60


def measure(module, path, seconds):
    """{write, read} in MB/s. SpeedError and OSError say why not."""
    fio = shutil.which("fio")
    if not fio:
        raise logic.SpeedError("fio is not installed")
    room = os.statvfs(path)
    short = logic.lacks_room(room.f_bavail * room.f_frsize)
    if short:
        raise logic.SpeedError(short)
    found = {}
    folder = tempfile.mkdtemp(prefix=".muster-speed-", dir=path)
    try:
        for kind in logic.KINDS:
            # A server that does not answer would keep fio for ever, and its processes do not end by themselves.
            argv = ["timeout", "--kill-after=5", str(seconds + logic.GRACE), *logic.command(fio, kind, folder, seconds)]
            rc, out, err = module.run_command(argv)
            if rc in (124, 137):
                raise logic.SpeedError("fio did not end within %d s" % (seconds + logic.GRACE))
            if rc:
                last = (err.strip() or out.strip() or "no reason given").splitlines()[-1]
                raise logic.SpeedError("fio ended with code %d: %s" % (rc, last))
            found[kind] = round(logic.rate(out, kind), 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "seconds": {"type": "int", "default": 10},
            "begin": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, reason="a dry run measures nothing")
    time.sleep(min(LONGEST_WAIT, max(0.0, module.params["begin"] - time.time())))
    try:
        module.exit_json(changed=False, reason="", **measure(module, module.params["path"], module.params["seconds"]))
    except logic.SpeedError as error:
        module.exit_json(changed=False, reason=str(error))
    except OSError as error:
        module.exit_json(changed=False, reason="%s cannot be used: %s" % (module.params["path"], error.strerror))


if __name__ == "__main__":
    main()
