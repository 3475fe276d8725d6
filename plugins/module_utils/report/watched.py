# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The section of a report's page with what the fleet's Prometheus knew of the time of the run, as the dashboards show it."""

from __future__ import annotations

import calendar
import math
import time
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.report.curves import MOST_POINTS
from ansible_collections.muster.fleet.plugins.module_utils.report.html import section, short, table
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import SHAPES, Plot, Series, swatch
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import escaped as text

# A reader cannot tell two lines of one colour apart.
MOST_SERIES = len(SHAPES)
# A run of more minutes than this is drawn in hours.
MOST_MINUTES = 180
MOST_ROWS = 20


def during(report: dict[str, Any]) -> str:
    """Return the section, or "" where no Prometheus knew anything."""
    charts = report["metrics"]
    times = [when for chart in charts for one in chart["series"] for when, _value in one["points"]]
    if not times:
        return ""
    run, end = report["run"], max(times)
    begun = calendar.timegm(time.strptime(run["started"][:19], "%Y-%m-%dT%H:%M:%S")) if run["started"] else min(times)
    minutes = (max(end, begun + (run["seconds"] or 0)) - begun) / 60
    clock = Clock(begun, *((60, "minutes") if minutes <= MOST_MINUTES else (3600, "hours")), end)
    parts = []
    if report["fleet"]["engine"]:
        parts.append('<p class="soft">The nodes are containers, so CPU and memory are those of their machine.</p>')
    for board in dict.fromkeys(chart["board"] for chart in charts):
        here = [chart for chart in charts if chart["board"] == board]
        parts.append("<h3>%s</h3>" % text(board.capitalize()))
        parts.append(_figures([chart for chart in here if chart["kind"] == "stat" and chart["series"]]))
        plots = [_plot(chart, clock, "during-%s%d" % (board, place)) for place, chart in enumerate(here) if _is_drawn(chart)]
        parts.append('<div class="pair">%s</div>' % "".join(plots) if plots else "")
        parts += [_table(chart, clock) for chart in here if chart["kind"] == "table" and (chart["series"] or chart["empty"])]
        without = [chart["title"] for chart in here if not chart["series"] and not chart["empty"]]
        parts.append('<p class="soft">Without data: %s.</p>' % text(", ".join(without)) if without else "")
    return section("During the run", "\n".join(part for part in parts if part), "during")


class Clock:
    """The axis of time that all plots share: BEGUN and END in seconds since 1970, and the SECONDS of its UNIT."""

    def __init__(self, begun: float, seconds: int, unit: str, end: float) -> None:
        self.begun, self.seconds, self.unit = begun, seconds, unit
        self.span = (0.0, max(self(end), 1e-9))

    def __call__(self, when: float) -> float:
        return max(0.0, (when - self.begun) / self.seconds)


def _is_drawn(chart: dict[str, Any]) -> bool:
    return chart["kind"] == "timeseries" and bool(chart["series"])


def _number(value: float) -> str:
    return "%d" % value if value == int(value) else "%.3g" % value if abs(value) < 100 else short(value)


def _figures(charts: list[dict[str, Any]]) -> str:
    """Return tiles with the last number of each chart, and its highest where that is another."""
    tiles = []
    for chart in charts:
        values = [value for _when, value in chart["series"][0]["points"]]
        most = "at most %s" % _number(max(values)) if max(values) != values[-1] else ""
        last = ("%s %s" % (_number(values[-1]), chart["unit"])).strip()
        tiles.append("<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>" % (text(chart["title"]), text(last), text(most)))
    return '<dl class="figures">%s</dl>' % "".join(tiles) if tiles else ""


def _plot(chart: dict[str, Any], clock: Clock, name: str) -> str:
    shown = sorted(chart["series"], key=lambda one: -max(value for _when, value in one["points"]))[:MOST_SERIES]
    series = []
    for colour, one in enumerate(sorted(shown, key=lambda one: one["label"])):
        points = one["points"][:: max(1, math.ceil(len(one["points"]) / MOST_POINTS))]
        notes = [("%s: %s %s" % (one["label"], _number(value), chart["unit"])).strip() for _when, value in points]
        series.append(Series(one["label"], [(clock(when), value) for when, value in points], colour, notes))
    title = "%s against time" % chart["title"]
    plot = Plot(title, series, chart["unit"], clock.unit, from_zero=True, x_span=clock.span)
    legend = "".join("<li>%s%s</li>" % (swatch(one.colour), text(one.label or chart["title"])) for one in series)
    more = len(chart["series"]) - len(shown)
    caption = "%s%s" % (chart["title"], ": the highest %d of %d" % (len(shown), len(chart["series"])) if more else "")
    return '<figure><figcaption>%s</figcaption><ul class="legend">%s</ul>%s</figure>' % (text(caption), legend, plot.both(name, 520, 240))


def _table(chart: dict[str, Any], clock: Clock) -> str:
    """Return when each series was there; PromQL says only that, as of an alarm that fires."""
    title = "<p>%s: %s</p>" % (text(chart["title"]), "" if chart["series"] else "none.")
    rows = []
    for one in sorted(chart["series"], key=lambda one: one["points"][0][0])[:MOST_ROWS]:
        first, last = (clock(one["points"][place][0]) for place in (0, -1))
        rows.append([text(one["label"]), "%.1f" % first, "%.1f" % last])
    if not rows:
        return title
    more = len(chart["series"]) - len(rows)
    left = '<p class="soft">And %d more.</p>' % more if more else ""
    return title + table([("What", ""), ("From, %s" % clock.unit, "number"), ("To", "number")], rows, "stack") + left
