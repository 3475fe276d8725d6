# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The style sheet of the report. It is Python so that Ansible ships it with the module that writes the page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #fff; --ink: #1c2024; --soft: #5a636c; --rule: #dcdedb; --track:
  #ecedea; --good: #1f7a46; --bad: #b3261e; --warn: #8a5a00; --goodback: #e3f3e8; --badback: #fbe9e7; --warnback: #fbf1dc; --c0:
  #2563a8; --c1: #c2570c; --c2: #2f7d4f; --c3: #8a3f9e; --c4: #b0273f; --c5: #5b6570; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181b; --card: #1d2125; --ink: #e6e8ea; --soft: #a2abb4; --rule: #343a40; --track: #2a2f34; --good: #6cc08b;
    --bad: #f28b82; --warn: #e3b457; --goodback: #1c3326; --badback: #3c2220; --warnback: #362c17; --c0: #6ea8e6; --c1: #f0a060;
    --c2: #6cc08b; --c3: #c99ae0; --c4: #f08a98; --c5: #aab4c0; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans",
  sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 56px; }
header p { margin: 0; color: var(--soft); }
h1 { margin: 2px 0 4px; font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; }
h1 .passed { color: var(--good); }
h1 .failed { color: var(--bad); }
h1 .unfinished { color: var(--warn); }
section { margin-top: 22px; padding: 18px 20px 20px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  }
h2 { margin: 0 0 10px; font-size: 18px; font-weight: 650; }
h3 { margin: 20px 0 6px; font-size: 15px; font-weight: 650; }
h3:first-of-type { margin-top: 0; }
h3 small, .soft { color: var(--soft); font-weight: 400; font-size: 14px; }
p { margin: 6px 0; }
.whole { display: inline-block; white-space: pre; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
dl.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 0; }
section dl.figures { margin: 6px 0 14px; }
dl.figures div { padding: 12px 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
dl.figures dt { color: var(--soft); font-size: 13px; }
dl.figures dd { margin: 2px 0 0; font-size: 21px; font-weight: 600; line-height: 1.3; }
dl.figures dd small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td:last-child, th:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; }
.item { margin: 8px 0; padding: 10px 14px; border-left: 4px solid var(--rule); border-radius: 0 6px 6px 0; background:
  var(--track); }
.item.failed { border-color: var(--bad); background: var(--badback); }
.item.not_run { border-color: var(--warn); background: var(--warnback); }
.item p { margin: 2px 0; white-space: pre-line; }
.tag { display: inline-block; padding: 0 8px; border-radius: 9px; font-size: 13px; font-weight: 600; white-space: nowrap; }
.tag.passed { color: var(--good); background: var(--goodback); }
.tag.failed { color: var(--bad); background: var(--badback); }
.tag.not_run, .tag.unfinished { color: var(--warn); background: var(--warnback); }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); }
details > :nth-child(2) { margin-top: 8px; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 6px; padding: 0; font-size: 14px; }
ul.legend svg { width: 26px; height: 12px; vertical-align: -1px; margin-right: 6px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 28px; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 2px; }
svg.plot { display: block; width: 100%; height: auto; }
svg.narrow { display: none; max-width: 480px; }
svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--soft); }
svg .mark { stroke: var(--warn); stroke-dasharray: 2 3; }
svg .marktext { fill: var(--warn); }
svg .tick { stroke: var(--soft); stroke-width: 2; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .limit { opacity: .6; stroke-dasharray: 5 3; }
svg .past { opacity: .45; stroke-dasharray: 4 3; }
.c0 { --c: var(--c0); }
.c1 { --c: var(--c1); }
.c2 { --c: var(--c2); }
.c3 { --c: var(--c3); }
.c4 { --c: var(--c4); }
.c5 { --c: var(--c5); }
svg .line { stroke: var(--c); }
svg .point { fill: var(--c); }
.bar { display: flex; height: 14px; border-radius: 3px; overflow: hidden; background: var(--track); min-width: 80px; margin-top:
  4px; }
.bar i { background: var(--c); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; background: var(--c); margin-right: 6px; }
td.wide { width: 55%; }
table.heatmap { width: auto; }
.heatmap th, .heatmap td { padding: 4px 8px; border: 1px solid var(--rule); text-align: center; white-space: nowrap; }
.heatmap td.self { background: var(--rule); }
.heat { background: color-mix(in srgb, color-mix(in srgb, var(--good) var(--part), var(--bad)) 45%, var(--card)); }
.heat.none { background: repeating-linear-gradient(45deg, var(--badback) 0 6px, color-mix(in srgb, var(--bad) 45%, var(--card)) 6px 8px); }
@media (max-width: 760px) {
  main { padding: 18px 12px 40px; }
  section { padding: 14px 14px 16px; }
  h1 { font-size: 25px; }
  .pair { grid-template-columns: 1fr; }
  svg.wide { display: none; }
  svg.narrow { display: block; }
  dl.figures { grid-template-columns: 1fr 1fr; gap: 8px; }
  dl.figures dd { font-size: 18px; }
  td.wide { width: 30%; }
  .bar { min-width: 40px; }
  td:first-child { overflow-wrap: anywhere; }
  table.stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table.stack tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--rule); }
  table.stack tr:last-child { border-bottom: 0; }
  table.stack td { display: flex; gap: 10px; padding: 2px 0; border: 0; text-align: left; white-space: normal; }
  table.stack td:empty { display: none; }
  table.stack td:first-child { font-weight: 600; }
  table.stack td:not(:first-child)::before { content: attr(data-label); flex: 0 0 92px; color: var(--soft); font-size: 13px; }
}
"""
