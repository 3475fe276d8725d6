#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: job_file
short_description: Fetch a file that a job's user wrote
version_added: 0.4.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads a file as the user of the job, follows no link and opens nothing but a regular file. So a link that the user put there leads
    nobody to a file that the user cannot read.
  - Copies it in parts, so that neither machine holds the whole file in memory. Of a file that is longer than O(most) it copies the first
    quarter and the last three quarters of O(most), cut at line ends.
attributes:
  check_mode:
    support: full
    description: Fetches the file as well, because nothing changes on the node.
  diff_mode:
    support: none
    description: Shows no content.
options:
  src:
    description: The file on the node.
    type: path
    required: true
  dest:
    description: The file on the Ansible controller. It gets the mode of O(src), without rights to execute it.
    type: str
    required: true
  user:
    description: The user who reads it.
    type: str
    default: muster
  required:
    description: Whether a missing file is a failure.
    type: bool
    default: false
  most:
    description: Bytes that are copied at most.
    type: int
    default: 67108864
  offset:
    description: Where to begin; the action plugin sets it.
    type: int
    default: 0
  length:
    description: Bytes to read; the action plugin sets it.
    type: int
    default: 4194304
"""

EXAMPLES = r"""
- name: Keep the output of a job
  muster.fleet.job_file:
    src: /fsx/muster/jobs/train-2f604121ef80/output.txt
    dest: runs/train/output.txt
    user: muster
"""

RETURN = r"""
exists:
  description: Whether the file exists.
  returned: success
  type: bool
size:
  description: Bytes of the file on the node.
  returned: when it exists
  type: int
mode:
  description: The mode of the file on the node.
  returned: when it exists
  type: str
left_out:
  description: Bytes in its middle that were not copied.
  returned: when it exists
  type: int
"""

import base64
import errno
import os
import pwd
import stat

from ansible.module_utils.basic import AnsibleModule


def become(user):
    """Read with the rights of a user from now on, when this is root."""
    if os.geteuid() == 0:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)


def main():
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "dest": {"type": "str", "required": True},
            "user": {"type": "str", "default": "muster"},
            "required": {"type": "bool", "default": False},
            "most": {"type": "int", "default": 64 << 20},
            "offset": {"type": "int", "default": 0},
            "length": {"type": "int", "default": 4 << 20},
        },
        supports_check_mode=True,
    )
    params, src = module.params, module.params["src"]
    try:
        user = pwd.getpwnam(params["user"])
    except KeyError:
        module.fail_json(msg="The user %s does not exist on this host; create it or name another one." % params["user"])
    groups = os.getgroups()
    become(user)
    try:
        # A pipe would block.
        number = os.open(src, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(number, "rb") as handle:
            info = os.fstat(number)
            regular = stat.S_ISREG(info.st_mode)
            if regular:
                handle.seek(params["offset"])
            content = handle.read(params["length"]) if regular else b""
        problem = None if regular else "it is not a regular file"
    except OSError as error:
        content, info, problem = b"", None, error
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)
    if isinstance(problem, OSError):
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            if params["required"]:
                module.fail_json(msg="%s does not exist on this host; the job did not write it." % src)
            module.exit_json(changed=False, exists=False)
        link = "it is a link; remove it" if problem.errno == errno.ELOOP else problem.strerror
        module.fail_json(msg="User %s cannot read %s: %s." % (params["user"], src, link))
    if problem or info is None:
        module.fail_json(msg="%s cannot be fetched: %s." % (src, problem))
    module.exit_json(
        changed=False, exists=True, size=info.st_size, mode="%04o" % stat.S_IMODE(info.st_mode), content=base64.b64encode(content).decode()
    )


if __name__ == "__main__":
    main()
