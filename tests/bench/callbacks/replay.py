# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Records what hosts answer to Ansible's commands over SSH, or gives the recorded answers instead of asking hosts.

MUSTER_RECORD=folder writes folder/ADDRESS, a line for each command in their order. MUSTER_REPLAY=folder answers the n-th command of a host
with line n of folder/HOST, or of folder/default, and asks nobody. So a bench sees what Ansible itself costs with hundreds of hosts.
"""

from __future__ import annotations

import base64
import functools
import json
import os
from pathlib import Path

from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import connection_loader


def recording(former, folder):
    def exec_command(connection, cmd, in_data=None, sudoable=True):
        code, out, err = former(connection, cmd, in_data=in_data, sudoable=sudoable)
        line = json.dumps([code, base64.b64encode(out).decode(), base64.b64encode(err).decode()])
        with (folder / connection.get_option("host")).open("a") as file:
            file.write(line + "\n")
        return code, out, err

    return exec_command


@functools.cache
def answers(path):
    return path.read_text().splitlines()


def replaying(folder):
    def exec_command(connection, cmd, in_data=None, sudoable=True):
        host = connection.get_option("host")
        known = answers(folder / host if (folder / host).exists() else folder / "default")
        # Each task has a process of its own, so a file counts.
        with (folder / f"count-{host}").open("ab") as file:
            number = file.tell()
            file.write(b".")
        if number >= len(known):
            return 1, b"", b"replay: there is no recorded answer left\n"
        code, out, err = json.loads(known[number])
        return code, base64.b64decode(out), base64.b64decode(err)

    return exec_command


class CallbackModule(CallbackBase):
    """Changes the connection plugin ssh before the first worker is forked."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "replay"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook):
        ssh = connection_loader.get("ansible.builtin.ssh", class_only=True)
        if folder := os.environ.get("MUSTER_RECORD"):
            ssh.exec_command = recording(ssh.exec_command, Path(folder))
        elif folder := os.environ.get("MUSTER_REPLAY"):
            ssh.exec_command = replaying(Path(folder))
            ssh.put_file = ssh.fetch_file = ssh.reset = lambda *_args, **_kwargs: None
            for name in ("controller-1", "default"):
                answers(Path(folder) / name)  # read once, before the forks
