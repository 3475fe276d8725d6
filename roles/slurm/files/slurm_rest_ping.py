# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Asks slurmrestd with and without a token, and prints the answers: `slurm_rest_ping.py LISTEN USER`, as root on a controller.

The token lives a minute, and on no command line.
"""

import http.client
import re
import socket
import subprocess
import sys
from pathlib import Path


class Local(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(listen, path, headers):
    """The status of one request."""
    address, _colon, port = listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1", "*": "127.0.0.1"}.get(address, address.strip("[]"))
    connection = Local(listen[5:]) if listen.startswith("unix:") else http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", path, headers=headers)
    return connection.getresponse().status


def main(listen, user):
    config = subprocess.run(["scontrol", "show", "config"], stdout=subprocess.PIPE, text=True, check=True).stdout
    folder = Path(re.search(r"^PluginDir *= *(\S+)", config, re.MULTILINE)[1])
    names = " ".join(path.name for path in folder.glob("*_v0_0_*.so"))
    version = max(int(number) for number in re.findall(r"(?:data_parser|openapi)_v0_0_(\d+)\.so", names))
    made = subprocess.run(["scontrol", "token", "lifespan=60", "username=" + user], stdout=subprocess.PIPE, text=True, check=True).stdout
    token = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": made.strip().split("=", 1)[1]}
    path = "/slurm/v0.0.%d/ping" % version
    print("%d with a token, %d without" % (ask(listen, path, token), ask(listen, path, {})))


if __name__ == "__main__":
    main(*sys.argv[1:])
