# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""muster rehearsal: stand-ins for the vendors' tools on a node that rehearses an instance type; they look at no hardware.

rehearsal.py packs this folder into one program for the node, so it imports only the standard library and itself. The program has several
names: those of `node.names()`, and `muster-rehearsal`, which makes the node's devices and keeps its faults. It reads
/etc/muster/rehearsal.json and rehearsal-faults.json. The forms of the output are those that tests/fixtures records.
"""
