# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dcgmi, in the forms of DCGM 4."""

from __future__ import annotations

import json

from .node import Refused, having, known_versions, option, say
from .nvidia import gpu_uuid, gpus_of


def dcgmi(document, faults, args):
    """dcgmi: discovery -l, diag -r N [-j], --version."""
    versions = known_versions()
    gpus = gpus_of(document, faults)
    if "--version" in args:
        say("dcgmi  version: %s (rehearsal)" % versions["dcgm"])
    elif args[:1] == ["discovery"]:
        say("%d GPU%s found." % (len(gpus), "" if len(gpus) == 1 else "s"))
        line = "+--------+----------------------------------------------------------------------+"
        say("%s\n| GPU ID | Device Information                                                   |\n%s" % (line, line))
        for gpu in gpus:
            texts = ("Name: " + document["gpu_name"], "PCI Bus ID: 0000" + gpu["bus"].upper(), "Device UUID: " + gpu_uuid(gpu))
            for number, text in enumerate(texts):
                say("| %-6s | %-68s |" % ("" if number else gpu["index"], text))
            say(line)
        say("%d NvSwitch%s found." % (len(document["switches"]), "" if len(document["switches"]) == 1 else "es"))
    elif args[:1] == ["diag"]:
        return diagnose(document, faults, versions, option(args, "-r", "--run") or "1", "-j" in args or "--json" in args)
    else:
        raise Refused("This stand-in of dcgmi knows discovery -l, diag -r and --version, not %s." % " ".join(args))
    return 0


def diagnose(document, faults, versions, level, as_json):
    """`dcgmi diag`; the exit code is 226 when a test failed, as DCGM's."""
    tests = {"software": "Deployment"}
    tests.update({"memory": "Hardware", "pcie": "Integration"} if level >= "2" else {})
    tests.update({"diagnostic": "Hardware", "nvbandwidth": "Integration"} if level >= "3" else {})
    gone, rows, hot = having(faults, "gpu_lost", "gpu_missing"), having(faults, "remapped_rows"), having(faults, "throttle")
    found = []
    for gpu in document["gpus"]:
        if gpu["index"] in gone:
            found.append(("software", gpu["index"], 28, "GPU %d is lost. Drain and reset the GPU, or restart the node." % gpu["index"]))
        if gpu["index"] in rows:
            found.append(("software", gpu["index"], 51, "GPU %d has a row remapping that is pending or failed." % gpu["index"]))
        if gpu["index"] in hot and "diagnostic" in tests:
            found.append(("diagnostic", gpu["index"], 24, "Thermal violations on GPU %d." % gpu["index"]))
    failed = {name for name, _gpu, _code, _text in found}
    if not as_json:
        say("Successfully ran diagnostic for group.\n| DCGM Version              | %s (rehearsal) |" % versions["dcgm"])
        for name in tests:
            say("| %-25s | %-46s |" % (name, "Fail" if name in failed else "Pass"))
        for _name, _gpu, _code, text in found:
            say("| %-25s | %-46s |" % ("Error", text))
        return 226 if failed else 0
    categories: dict = {}
    for name, category in tests.items():
        results = []
        for gpu in document["gpus"]:
            said = [(code, text) for each, index, code, text in found if each == name and index == gpu["index"]]
            result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu["index"], "status": "Fail" if said else "Pass"}
            if said:
                result["warnings"] = [{"error_category": 7, "error_id": code, "error_severity": 3, "warning": text} for code, text in said]
            results.append(result)
        test = {"name": name, "results": results, "test_summary": {"status": "Fail" if name in failed else "Pass"}}
        categories.setdefault(category, []).append(test)
    root = {
        "version": versions["dcgm"] + " (rehearsal)",
        "Driver Version Detected": versions["nvidia_driver"],
        "test_categories": [{"category": name, "tests": tests} for name, tests in categories.items()],
    }
    say(json.dumps({"DCGM Diagnostic": root}, indent=1))
    return 226 if failed else 0
