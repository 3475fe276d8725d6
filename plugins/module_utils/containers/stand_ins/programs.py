# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of a stand-in is the one whose name it was called by."""

from __future__ import annotations

import os
import sys

from .collectives import perf
from .dcgm import dcgmi
from .devices import fi_info, ibv_devices, ibv_devinfo, neuron_ls
from .node import Refused, known_faults, say, the_document
from .nvidia import nvidia_smi
from .system import manage

PROGRAMS = {
    "nvidia-smi": nvidia_smi,
    "dcgmi": dcgmi,
    "fi_info": fi_info,
    "ibv_devices": ibv_devices,
    "ibv_devinfo": ibv_devinfo,
    "neuron-ls": neuron_ls,
}


def main(argv):
    """Run as the program whose name this was called by."""
    name = os.path.basename(argv[0])
    try:
        if name not in PROGRAMS and not name.endswith("_perf"):
            return manage(argv[1:])
        document = the_document(name)
        if name not in document["stand_ins"]:
            raise Refused("%s has no devices for %s." % (document["instance_type"], name))
        if not int(os.environ.get("SLURM_PROCID") or 0):
            start = "muster rehearsal: %s"
            say(
                (start + " is a stand-in for %s; it looked at no hardware") % (name, document["instance_type"]), file=sys.stderr, flush=True
            )
        faults = known_faults()
        return PROGRAMS[name](document, faults, argv[1:]) if name in PROGRAMS else perf(name, document, faults, argv[1:])
    except Refused as error:
        say(str(error), file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
