# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts that all sections of a report's page are made of."""

from __future__ import annotations

from typing import Iterable, Optional

from ansible_collections.muster.fleet.plugins.module_utils.report.plot import escaped as text


def duration(seconds: float) -> str:
    """Return SECONDS for a person: 0.4 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 10:
        return "%.1f s" % seconds
    whole = round(seconds)
    if whole < 60:
        return "%d s" % whole
    if whole < 3600:
        return "%d min %02d s" % divmod(whole, 60)
    return "%d h %02d min" % divmod(whole // 60, 60)


def moment(stamp: Optional[str]) -> str:
    return "%s, %s UTC" % (stamp[:10], stamp[11:16]) if stamp else "start unknown"


def section(title: str, body: str, name: str) -> str:
    return '<section id="%s">\n<h2>%s</h2>\n%s\n</section>' % (name, text(title), body)


def table(columns: list[tuple[str, str]], rows: Iterable[list[str]], kind: str = "") -> str:
    """Return a table; COLUMNS are (title, class), the cells of ROWS are HTML."""
    head = "".join('<th class="%s">%s</th>' % (style, text(title)) for title, style in columns)
    body = "\n".join(
        "<tr>%s</tr>"
        % "".join('<td class="%s" data-label="%s">%s</td>' % (style, text(title), cell) for (title, style), cell in zip(columns, row))
        for row in rows
    )
    return '<div class="scroll"><table class="%s"><thead><tr>%s</tr></thead>\n<tbody>\n%s\n</tbody></table></div>' % (kind, head, body)


def tag(status: str, words: str) -> str:
    return '<span class="tag %s">%s</span>' % (text(status), text(words))


def short(number: float) -> str:
    return "%.0f" % number if number >= 100 else "%.1f" % number
