# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The section of a report's page with the pairs of nodes that `diagnose.yml` tested: what it found, and a heat map.

The map is a table, so that narrow screens need no second drawing and readers who see no colours have the numbers.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose
from ansible_collections.muster.fleet.plugins.module_utils.report.html import section, table, tag
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import escaped as text

# Of a larger fleet the map shows the nodes of the slowest pairs.
MOST_NODES = 24
# A pair with this part of the usual bandwidth, or less, has the colour of the worst.
WORST = 0.5
LEGEND = (
    '<ul class="legend"><li><span class="key heat" style="--part: 100%"></span>usual</li>'
    '<li><span class="key heat" style="--part: 0%"></span>half of it, or less</li>'
    '<li><span class="key heat none"></span>no result</li></ul>'
)


def diagnoses(entries: list[dict[str, Any]]) -> str:
    """Return the section of a run's diagnoses, one for each instance type; empty without any."""
    parts = []
    for entry in entries:
        parts.append("<h3>%s <small>%s</small></h3>" % (text(entry["type"] or "All nodes"), text(diagnose.spent(entry))))
        parts += ['<div class="item failed"><p>%s</p></div>' % text(said) for said in diagnose.findings(entry)]
        parts += ['<p class="soft">%s</p>' % text(said) for said in diagnose.remarks(entry)]
        if any(entry["pairs"]):
            parts += [_map(entry), _tests(entry)]
    return section("Pairs of nodes", "\n".join(parts), "pairs") if parts else ""


def _part(test: dict[str, Any], usual: dict[str, Any]) -> float:
    """Return the part of the usual bandwidth that TEST reached: 0 without a result."""
    most = usual.get(test["kind"])
    return min(test["value"] / most, 1.0) if most and test["value"] is not None and not test["error"] else 0.0


def _map(entry: dict[str, Any]) -> str:
    tests = [{**test, "round": number} for number, round_ in enumerate(entry["pairs"], 1) for test in round_]
    worst = sorted(tests, key=lambda test: (test["well"], _part(test, entry["usual"])))
    everyone = list(dict.fromkeys(node for test in worst for node in test["nodes"]))
    nodes = sorted(everyone[:MOST_NODES], key=lambda node: (version_key(node), node))
    met: dict[frozenset[str], list[dict[str, Any]]] = {}
    for test in tests:
        met.setdefault(frozenset(test["nodes"]), []).append(test)
    head = "".join('<th scope="col">%s</th>' % text(node) for node in nodes)
    rows = []
    for row in nodes:
        cells = "".join(_cell(met.get(frozenset((row, column)), []), row == column, entry["usual"]) for column in nodes)
        rows.append('<tr><th scope="row">%s</th>%s</tr>' % (text(row), cells))
    caption = "GB/s of each pair. The tooltip of a field has its tests."
    if len(everyone) > len(nodes):
        caption += " Of %d nodes, the %d of the slowest pairs." % (len(everyone), len(nodes))
    grid = '<div class="scroll"><table class="heatmap"><thead><tr><td></td>%s</tr></thead>\n<tbody>\n%s\n</tbody></table></div>'
    return "<figure>%s%s<figcaption>%s</figcaption></figure>" % (LEGEND, grid % (head, "\n".join(rows)), text(caption))


def _cell(tests: list[dict[str, Any]], same: bool, usual: dict[str, Any]) -> str:
    """Return the field of a pair: its last test gives number and colour."""
    if not tests:
        return '<td class="%s"></td>' % ("self" if same else "")
    last = tests[-1]
    title = text("; ".join("%s in round %d" % (_said(test), test["round"]) for test in tests))
    if last["error"] or last["value"] is None:
        return '<td class="heat none" title="%s">none</td>' % title
    colour = round(100 * max(0.0, _part(last, usual) - WORST) / (1 - WORST))
    return '<td class="heat" style="--part: %d%%" title="%s">%s</td>' % (colour, title, "%.3g" % last["value"])


def _said(test: dict[str, Any]) -> str:
    return "%s: %s" % (" with ".join(test["nodes"]), test["error"] or "%.4g GB/s" % test["value"])


def _tests(entry: dict[str, Any]) -> str:
    """Return the tests by rounds, folded away; the wells of a large fleet are left to report.json."""
    rows = []
    for number, round_ in enumerate(entry["pairs"], 1):
        shown = sorted(round_, key=lambda test: test["well"])[: max(MOST_NODES, sum(not test["well"] for test in round_))]
        for test in shown:
            word = tag("passed", "well") if test["well"] else tag("failed", "no result" if test["error"] else "slow")
            value = text(test["error"] or "%.4g GB/s" % test["value"])
            rows.append([str(number), text(", ".join(test["nodes"])), value, word])
    columns = [("Round", "number"), ("Nodes", ""), ("Reached", ""), ("", "")]
    return "<details><summary>The tests</summary>%s</details>" % table(columns, rows, "stack")
