# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node rehearses, its faults, and the device files that it has of both."""

from __future__ import annotations

import errno
import json
import os
import sys

SCHEMA = "muster.rehearsal/1"
DOCUMENT = "/etc/muster/rehearsal.json"
FAULTS = "/etc/muster/rehearsal-faults.json"
MANIFEST = "/etc/muster/manifest.json"
SELF = "muster-rehearsal"
# Majors that Linux keeps for local and experimental use: no driver answers, also on a machine with a real GPU or InfiniBand.
MAJORS = {"nvidia": 60, "infiniband": 61, "neuron": 62, "nvidia-uvm": 63, "nvidia-caps": 120, "nvidia-nvswitch": 121}
# Versions where the node's manifest has none.
VERSIONS = {"nvidia_driver": "595.84", "cuda": "13.2", "dcgm": "4.5.2", "nccl": "2.28.9", "nccl_tests": "2.19.6", "neuron": "2.30.2.0"}
# What a fault may have besides its name: of what kind its index is, and other keys with their types.
KINDS: dict = {
    "gpu_lost": ("gpus", {}),  # the driver lost it, the PCI bus still has it
    "gpu_missing": ("gpus", {}),  # the PCI bus lacks it
    "remapped_rows": ("gpus", {"failure": bool}),  # a remapping that is pending, or that failed
    "throttle": ("gpus", {}),
    "xid": ("gpus", {"code": int}),
    "efa_missing": ("efa", {}),
    "efa_down": ("efa", {}),
    "neuron_missing": ("neuron", {}),
    "slow": ("", {"factor": float}),  # collectives with this host reach this part of their bandwidth
}
COLLECTIVES = {
    "all_reduce": (2, "sum", -1),
    "all_gather": (1, "none", -1),
    "reduce_scatter": (1, "sum", -1),
    "alltoall": (1, "none", -1),
    "broadcast": (0, "none", 0),
    "reduce": (0, "sum", 0),
    "sendrecv": (0, "sum", -1),
}


def say(text, file=None, flush=False):
    """Print a line. The sanity tests of collections forbid `print`, because modules must not use it."""
    stream = file or sys.stdout
    stream.write(text + "\n")
    if flush:
        stream.flush()


def whole(value):
    """Tell whether a value of JSON is a whole number; in Python a truth value is one, too."""
    return isinstance(value, int) and not isinstance(value, bool)


class Refused(Exception):
    """An expected failure; the text is one sentence for the user."""


def names(document):
    """The programs that the node has stand-ins for."""
    out = ["nvidia-smi", "dcgmi"] + ["%s_perf" % each for each in COLLECTIVES] if document["gpus"] else ["neuron-ls"]
    if document["efa"]:
        out.append("fi_info")
    return sorted(out + (["ibv_devices", "ibv_devinfo"] if document["efa"] or document["switch_ports"] else []))


def check_faults(document, faults):
    """Refuse faults that the type cannot have."""
    if not isinstance(faults, list) or not all(isinstance(each, dict) for each in faults):
        raise Refused('Faults are a list such as [{"fault": "gpu_lost", "index": 3}], not %s.' % json.dumps(faults))
    for each in faults:
        if each.get("fault") not in KINDS:
            raise Refused("There is no fault %s; known are %s." % (each.get("fault"), ", ".join(KINDS)))
        where, keys = KINDS[each["fault"]]
        unknown = sorted(set(each) - {"fault", *keys} - ({"index"} if where else set()))
        if unknown:
            raise Refused("Fault %s has no %s." % (each["fault"], unknown[0]))
        have = len(document[where]) if where else 0
        what = {"gpus": "GPUs", "efa": "EFA devices", "neuron": "Neuron devices"}.get(where)
        index = each.get("index")
        if where and not (whole(index) and 0 <= index < have):
            raise Refused(
                "Fault %s cannot have index %s: %s has %d %s%s."
                % (each["fault"], json.dumps(index), document["instance_type"], have, what, ", from 0 to %d" % (have - 1) if have else "")
            )
    slow = [each.get("factor") for each in faults if each["fault"] == "slow"]
    wrong = [factor for factor in slow if not (isinstance(factor, float) or whole(factor)) or not 0 < factor <= 1]
    if wrong:
        raise Refused("Fault slow cannot have factor %s: give a number above 0 and at most 1." % json.dumps(wrong[0]))
    codes = [each.get("code") for each in faults if each["fault"] == "xid"]
    if not all(whole(code) for code in codes):
        raise Refused("Fault xid needs a code, such as 79.")


def own(faults):
    """The faults of this node; the others are of its neighbours."""
    return [each for each in faults if not each.get("host")]


def having(faults, *kinds):
    """The indexes with one of these faults on this node."""
    return {each["index"] for each in own(faults) if each["fault"] in kinds}


def device_files(document, faults):
    """[(path, major, minor)] of the device files."""
    out = []
    if document["gpus"]:
        gone = having(faults, "gpu_missing")
        out += [("/dev/nvidia%d" % gpu["index"], MAJORS["nvidia"], gpu["index"]) for gpu in document["gpus"] if gpu["index"] not in gone]
        out += [("/dev/nvidiactl", MAJORS["nvidia"], 255), ("/dev/nvidia-modeset", MAJORS["nvidia"], 254)]
        out += [("/dev/nvidia-uvm", MAJORS["nvidia-uvm"], 0), ("/dev/nvidia-uvm-tools", MAJORS["nvidia-uvm"], 1)]
        out += [("/dev/nvidia-caps/nvidia-cap%d" % each, MAJORS["nvidia-caps"], each) for each in (1, 2)]
    if document["switches"]:
        out += [("/dev/nvidia-nvswitch%d" % each["index"], MAJORS["nvidia-nvswitch"], each["index"]) for each in document["switches"]]
        out.append(("/dev/nvidia-nvswitchctl", MAJORS["nvidia-nvswitch"], 255))
    gone = having(faults, "neuron_missing")
    out += [("/dev/neuron%d" % each["index"], MAJORS["neuron"], each["index"]) for each in document["neuron"] if each["index"] not in gone]
    gone = having(faults, "efa_missing")
    cards = [each for each in document["efa"] if each["index"] not in gone]
    out += [("/dev/infiniband/uverbs%d" % each["index"], MAJORS["infiniband"], 192 + each["index"]) for each in cards]
    for index in range(len(document["switch_ports"])):
        number = len(document["efa"]) + index
        out.append(("/dev/infiniband/uverbs%d" % number, MAJORS["infiniband"], 192 + number))
        out += [("/dev/infiniband/umad%d" % index, MAJORS["infiniband"], index)]
        out += [("/dev/infiniband/issm%d" % index, MAJORS["infiniband"], 64 + index)]
    return out


def read_json(path, missing):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return missing


def known_faults():
    """The faults that the node was told."""
    return read_json(FAULTS, [])


def known_versions():
    """{component: version} from the node's manifest, else those that the forms of the output are from."""
    found = (read_json(MANIFEST, {}) or {}).get("components", {})
    return {name: str(found.get(name, {}).get("version") or version) for name, version in VERSIONS.items()}


def the_document(name):
    """What the node rehearses. Refused on a real node."""
    document = read_json(DOCUMENT, None)
    if not document:
        raise Refused("%s is a stand-in of a rehearsal and this node rehearses nothing: install the vendor's program." % name)
    return document


def opened(path):
    """Whether this process may open a device file. No hardware is behind it, so the answer is ENXIO where it may."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT)
    return True


def option(args, short, long):
    """The value of an option, as `-b 8`, `--minbytes 8` or `--minbytes=8`; None without it."""
    for index, arg in enumerate(args):
        if arg in (short, long) and index + 1 < len(args):
            return args[index + 1]
        if arg.startswith(long + "="):
            return arg[len(long) + 1 :]
    return None
