# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bandwidths that a table of nccl-tests must reach and cannot exceed: `bounds(table, expect)` gives

    {"floors": [floor], "ceiling": GB/s | None, "remarks": [str]}
    floor: {"min_size", "below": bytes | None, "placement", "floor": GB/s | None, "warn": GB/s | None, "source"}

A floor judges the sizes from min_size up to `below`; less than `floor` fails, less than `warn` is a remark. Floors of the caller
replace those of the catalogue. A figure that nobody published has no `floor`, so it fails nothing.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import instance_type, nccl_expectation, nccl_sizes

FAIL_BELOW = 0.90
WARN_BELOW = 0.95
PUBLISHED_TYPE = "float"
ASKED = "asked for"  # the source of a floor that the caller gave


def bounds(table: dict[str, Any], expect: dict[str, Any]) -> dict[str, Any]:
    """EXPECT: floors [{min_size, busbw, placement?, collective?}], instance_type, nodes, hosts, fail_below, warn_below."""
    collective = table["collective"]
    own = [
        {
            "min_size": floor["min_size"],
            "below": None,
            "placement": floor.get("placement"),
            "floor": floor["busbw"],
            "warn": None,
            "source": ASKED,
        }
        for floor in expect.get("floors") or []
        if floor.get("collective") in (None, collective)
    ]
    found: dict[str, Any] = {"floors": own, "ceiling": None, "remarks": []}
    name = expect.get("instance_type")
    if not name or not collective:
        return found
    have = instance_type(name)
    nodes = expect.get("nodes") or len(expect.get("hosts") or table["hosts"])
    ranks = table["ranks"] or table["ranks_proven"]
    if not nodes or ranks != nodes * have["gpus"]:
        remark = "%d %s have %d GPUs and this run had %s ranks, so no figure of the catalogue judges it"
        found["remarks"].append(remark % (nodes, have["name"], nodes * have["gpus"], ranks or "an unknown number of"))
        return found
    sizes = nccl_sizes(name, nodes, collective)
    found["ceiling"] = (nccl_expectation(name, nodes, collective, 0) or {}).get("ceiling")
    if own:
        return found
    other = sorted({row["type"] for row in table["rows"]} - {PUBLISHED_TYPE})
    for size, below in zip(sizes, [*sizes[1:], None]):
        point = nccl_expectation(name, nodes, collective, size)
        judges = point["published"] and not other
        floor = round(point["reference"] * (expect.get("fail_below") or FAIL_BELOW), 2) if judges else None
        warn = round(point["reference"] * (expect.get("warn_below") or WARN_BELOW), 2)
        # The published figures are of the out-of-place half.
        found["floors"].append(
            {"min_size": size, "below": below, "placement": "out_of_place", "floor": floor, "warn": warn, "source": point["source"]}
        )
    if other:
        found["remarks"].append("the published busbw is of %s, so no floor judges %s" % (PUBLISHED_TYPE, ", ".join(other)))
    elif not any(floor["floor"] for floor in found["floors"]):
        found["remarks"].append("nobody published its busbw on %d %s, so no floor judges it" % (nodes, have["name"]))
    return found
