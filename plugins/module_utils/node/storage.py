# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shared file system: names of mount units, the clients' part of a line of exports(5), and the faults of its settings."""

from __future__ import annotations

import re

MOST_CONNECTIONS = 16  # of nfs(5)


def mount_unit(path):
    """/fsx/home -> fsx-home.mount, as systemd-escape prints it (systemd.unit(5))."""
    parts = [part for part in str(path).split("/") if part]
    out = ""
    for index, byte in enumerate("/".join(parts).encode()):
        char = chr(byte)
        plain = byte < 128 and (char.isalnum() or char in ":_" or (char == "." and index > 0))
        out += "-" if char == "/" else char if plain else "\\x%02x" % byte
    return (out or "-") + ".mount"


def export_clients(clients, root_clients, options):
    """`HOST(OPTIONS) HOST(OPTIONS)`; root keeps its rights on `root_clients`."""
    own = ["no_root_squash" if client in root_clients else "root_squash" for client in clients]
    return " ".join("%s(%s)" % (client, ",".join([*options, root])) for client, root in zip(clients, own))


def faults(servers, options):
    """The faults, a sentence each. `options` are the variables storage_* of a site, without their prefix."""
    found = []
    if len(servers) > 1:
        message = (
            "The group muster_storage has %d hosts, %s and %s first; only one host may serve the shared file system, remove the others."
        )
        found.append(message % (len(servers), servers[0], servers[1]))
    source = str(options.get("source") or "")
    if source and servers:
        message = (
            "The file system of storage_source (%s) and that of the group muster_storage (%s) have one mount point; remove one of them."
        )
        found.append(message % (source, servers[0]))
    if source and not re.fullmatch(r"[^\s/]+:/\S*", source):
        found.append(
            "Variable storage_source is '%s'; give HOST:/PATH, such as fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com:/fsx." % source
        )
    path = str(options.get("path") or "/fsx")
    if not path.startswith("/") or path.strip("/") == "" or any(char.isspace() for char in path):
        found.append(
            "The shared file system cannot be mounted at '%s' (storage_path); give an absolute path without spaces, such as /fsx." % path
        )
    connections = options.get("nconnect") or 0
    if not 0 <= int(connections) <= MOST_CONNECTIONS:
        message = "Variable storage_nconnect is %s; a client opens at most %d connections, or 0 for the kernel's own number."
        found.append(message % (connections, MOST_CONNECTIONS))
    return found
