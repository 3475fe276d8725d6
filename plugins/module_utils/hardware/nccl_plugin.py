# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether NCCL will load a network plugin: which file it opens, what the plugin exports, and the faults, a sentence each.

NCCL opens libnccl-net-NAME.so (NCCL_NET_PLUGIN=NAME; libnccl-net.so without it) and takes the newest ncclNetPlugin_vN that it knows.
When that fails NCCL logs one line and the job continues over TCP, unless NCCL_NET names the plugin's transport.
"""

from __future__ import annotations

import re
import struct

SYMBOL = re.compile(rb"ncclNetPlugin_v(\d+)\0")
UNDEFINED = 0
DYNSYM = 11


class PluginError(ValueError):
    """The file cannot be read as a library; the text is one sentence for the user."""


def settings(text):
    """The variables {name: value} of a file such as /etc/nccl.conf."""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def library_name(environment):
    """The name of the file that NCCL opens."""
    name = environment.get("NCCL_NET_PLUGIN", "")
    if name.endswith(".so") or "/" in name:
        return name
    return "libnccl-net-%s.so" % name if name else "libnccl-net.so"


def find(name, ldconfig):
    """The path at which the loader finds a library, or "". ldconfig: the output of `ldconfig -p`."""
    found = re.search(r"^\s*%s \(.*\) => (\S+)$" % re.escape(name), ldconfig, re.MULTILINE)
    return found.group(1) if found else ""


def exported(data, path):
    """The names that a 64-bit ELF library exports."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise PluginError("%s is not a library for this machine; install the plugin again." % path)
    try:
        start, size, count = (
            struct.unpack_from("<Q", data, 40)[0],
            struct.unpack_from("<H", data, 58)[0],
            struct.unpack_from("<H", data, 60)[0],
        )
        # Type, offset, size and link of each section.
        sections = [struct.unpack_from("<4xI16xQQI", data, start + number * size) for number in range(count)]
        names = set()
        for kind, offset, length, link in sections:
            if kind != DYNSYM:
                continue
            strings = sections[link][1]
            for entry in range(offset, offset + length, 24):
                name, _info, _other, section = struct.unpack_from("<IBBH", data, entry)
                if section != UNDEFINED:
                    begin = strings + name
                    names.add(data[begin : data.index(b"\0", begin)].decode())
        return names
    except (struct.error, IndexError, ValueError) as error:
        raise PluginError("%s is incomplete; install the plugin again." % path) from error


def offered(names):
    """The interface versions of a plugin, from its exported names."""
    return sorted(int(each[15:]) for each in names if re.match(r"ncclNetPlugin_v\d+$", each))


def known(data):
    """The interface versions that NCCL asks for; the library has their names as texts."""
    return sorted({int(number) for number in SYMBOL.findall(data)})


def missing_libraries(ldd):
    """The libraries that `ldd` does not find."""
    return re.findall(r"^\s*(\S+) => not found$", ldd, re.MULTILINE)


def interface_fault(path, offers, nccl, knows):
    """Why NCCL would reject the plugin after it has loaded it, or ""."""
    if not offers:
        return "%s exports no ncclNetPlugin symbol, so it is not a plugin of NCCL." % path
    if not set(offers) & set(knows):
        said = "%s has versions %s of the interface and %s asks for %s; use a plugin made for this NCCL."
        return said % (path, ", ".join(map(str, offers)), nccl, ", ".join(map(str, knows)) or "none")
    return ""


def transport_fault(environment, name):
    """Why a job would fall back to TCP, or fail, with a plugin of this name; "" when it works."""
    wanted = environment.get("NCCL_NET", "")
    if not wanted:
        return "NCCL_NET is not set, so a plugin that fails would be replaced by TCP; set it to %s." % name
    if wanted.lower() != name.lower():
        return "NCCL_NET is %s and the plugin calls itself %s, so every job would fail; set it to %s." % (wanted, name, name)
    return ""
