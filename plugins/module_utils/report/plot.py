# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Line plots as SVG text. Colours are the classes c0 to c5 of the page; the shapes of markers tell series of one colour apart."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size

# Markers around (0, 0): circle, square, triangle, diamond, bar, cross.
SHAPES = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "M-2.9 -2.9h5.8v5.8h-5.8z",
    "M0 -3.8L3.6 2.8H-3.6z",
    "M0 -4.1L4.1 0L0 4.1L-4.1 0z",
    "M-4 -1.6h8v3.2h-8z",
    "M-1.3 -4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
)
# Markers of more points than this would hide the line.
MOST_MARKERS = 40


def escaped(value: Any) -> str:
    """Return VALUE escaped for HTML, without the control characters that HTML forbids; None gives ""."""
    plain = "" if value is None else str(value)
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in plain))


@dataclass
class Series:
    """One line: (x, y) POINTS in the order of x, a COLOUR number, and a note for each point, which the browser shows on hovering."""

    label: str
    points: list[tuple[float, float]]
    colour: int
    notes: list[str]
    style: str = ""


@dataclass
class Plot:
    """MARKS are (x, text) drawn as vertical lines, TICKS are x drawn on the axis.

    LOG2 puts x on a scale of powers of two, LOG10 y on one of powers of ten, which a y of 0 is not on.
    X_SPAN is the axis of several plots; without it the axis reaches from the lowest to the highest x.
    """

    title: str
    series: list[Series]
    y_title: str
    x_title: str
    log2: bool = False
    log10: bool = False
    from_zero: bool = False
    marks: list[tuple[float, str]] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    x_span: Optional[tuple[float, float]] = None

    def both(self, name: str, width: int, height: int) -> str:
        """Return the drawings for a wide (WIDTH x HEIGHT) and a narrow screen; NAME makes their ids unique."""
        return self._svg("wide", name, width, height) + self._svg("narrow", name, 340, 260)

    def _svg(self, kind: str, name: str, width: int, height: int) -> str:
        points = [point for one in self.series for point in one.points]
        xs, ys = [x for x, _y in points], [y for _x, y in points]
        y_ticks = log10_ticks(min(ys), max(ys)) if self.log10 else nice_ticks(0 if self.from_zero else min(ys), max(ys), 5)
        y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)
        # As many as the distance of two ticks needs: 2.5 has one.
        digits = len(("%.10f" % (y_ticks[1] - y_ticks[0])).rstrip("0").partition(".")[2])
        y_texts = ["%g" % tick if self.log10 else "%.*f" % (digits, tick) for tick in y_ticks]
        # A digit is 7 units wide at the page's letters of 12 pixels.
        left, right, top, bottom = 16 + 7 * max(len(text) for text in y_texts), width - 14, 24, height - 40
        x_low, x_high = self.x_span or (min(xs), max(xs))
        most = 9 if kind == "wide" else 5
        if self.log2:
            x_ticks = log2_ticks(x_low, x_high, most)
        else:
            x_ticks = [tick for tick in nice_ticks(x_low, x_high, most) if x_low <= tick <= x_high]

        def across(x: float) -> float:
            low, high, at = (math.log2(value) for value in (x_low, x_high, x)) if self.log2 else (x_low, x_high, x)
            return left + 6 + (right - left - 12) * ((at - low) / (high - low) if high > low else 0.5)

        def down(y: float) -> float:
            low, high, at = (math.log10(value) for value in (y_low, y_high, y)) if self.log10 else (y_low, y_high, y)
            return bottom - (bottom - top) * (at - low) / (high - low)

        ends = "%s from %s to %s" % (self.x_title, self._x_text(x_low), self._x_text(x_high))
        labels = ", ".join(dict.fromkeys(one.label for one in self.series))
        ident = "%s-%s" % (name, kind)
        out = [
            '<svg class="plot %s" viewBox="0 0 %d %d" role="img" aria-labelledby="%s-t %s-d">' % (kind, width, height, ident, ident),
            '<title id="%s-t">%s</title>' % (ident, escaped(self.title)),
            '<desc id="%s-d">%s; %s</desc>' % (ident, escaped(labels), escaped(ends)),
            '<text x="0" y="12">%s</text>' % escaped(self.y_title),
        ]
        for tick, text in zip(y_ticks, y_texts):
            y = down(tick)
            out.append('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (left, right, y, y))
            out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (left - 8, y + 4, text))
        out.append('<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>' % (left, right, bottom, bottom))
        for tick in x_ticks:
            out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (across(tick), bottom + 17, self._x_text(tick)))
        out.append('<text x="%.1f" y="%d" text-anchor="end">%s</text>' % (right, height - 4, escaped(self.x_title)))
        for x in self.ticks:
            if x_low <= x <= x_high:
                out.append('<line class="tick" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (across(x), across(x), bottom - 6, bottom))
        for row, (x, text) in enumerate(self.marks):
            at = across(min(max(x, x_low), x_high))
            side = "end" if at > (left + right) / 2 else "start"
            out.append('<line class="mark" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (at, at, top, bottom))
            shift = -5 if side == "end" else 5
            out.append(
                '<text class="marktext" x="%.1f" y="%d" text-anchor="%s">%s</text>'
                % (at + shift, top + 10 + 14 * (row % 4), side, escaped(text))
            )
        seen = max(len(one.points) for one in self.series) <= MOST_MARKERS
        for one in self.series:
            spots = [(across(x), down(y)) for x, y in one.points]
            path = "L".join("%.1f %.1f" % spot for spot in spots)
            out.append('<path class="line c%d %s" d="M%s"/>' % (one.colour % 6, one.style, path))
            # Markers that would be too many to see are invisible, but still show their notes.
            shape, faint = (SHAPES[one.colour % 6], "") if seen else ("M-4 -4h8v8h-8z", ' fill-opacity="0"')
            for (x, y), note in zip(spots, one.notes):
                where = 'transform="translate(%.1f %.1f)" d="%s"%s' % (x, y, shape, faint)
                out.append('<path class="point c%d %s" %s><title>%s</title></path>' % (one.colour % 6, one.style, where, escaped(note)))
        return "\n".join([*out, "</svg>"])

    def _x_text(self, x: float) -> str:
        return human_size(int(x)) if self.log2 else "%g" % x


def swatch(colour: int) -> str:
    """Return the small drawing of a series for the legend."""
    number = colour % 6
    return (
        '<svg viewBox="-13 -6 26 12" aria-hidden="true"><path class="line c%d" d="M-13 0H13"/><path class="point c%d" d="%s"/></svg>'
    ) % (number, number, SHAPES[number])


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Return at least two round numbers from LOW to HIGH, ABOUT as many as given."""
    if high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def log10_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten from at most LOW to at least HIGH, at least two."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [float("1e%d" % exponent) for exponent in range(first, max(last, first + 1) + 1)]


def log2_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most MOST powers of two from LOW to HIGH, at equal distances."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    stride = max(1, math.ceil((last - first + 1) / most))
    return [float(2**exponent) for exponent in range(first, last + 1, stride)]
