# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Records of health checks as muster-health makes them, and nodes as scontrol shows them."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.health import settings

# Lines of `scontrol show nodes --oneliner`: with a comment and a reason, and without.
SHOWN = (
    "NodeName={} Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 AvailableFeatures={} ActiveFeatures=p5 Gres=gpu:h100:8 NodeAddr=10.0.0.1"
    " State={} ThreadsPerCore=1 Partitions=main BootTime=1764060000 CfgTRES=cpu=1 Comment={} Reason={} [root@{}]"
)
QUIET = "NodeName={} Arch=x86_64 AvailableFeatures=(null) ActiveFeatures=(null) State={} Partitions=main,gpu BootTime=1764060000"


def record(check: str, status: str = "failed", **more: Any) -> dict[str, Any]:
    known = {each.name: each for each in settings.CHECKS}[check]
    base = {
        "component": "node_health",
        "level": "node",
        "check": check,
        "status": status,
        "expected": "8",
        "found": "7",
        "reason": "the driver lists 7 of 8 GPUs" if status != "passed" else "",
        "remedy": known.remedy,
        "seconds": 0.1,
        "severity": known.severity,
        "allowed": False,
    }
    return {**base, **more}
