# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemctl commands that bring units into a state."""

from __future__ import annotations

PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,NeedDaemonReload,InactiveExitTimestampMonotonic"
# When a unit also has a SysV script, Debian's systemctl runs update-rc.d too, although only the unit counts.
ENVIRONMENT = {"SYSTEMCTL_SKIP_SYSV": "1"}


def show(module, names):
    """{name: properties} of units of this node, from one call. `module` is the AnsibleModule that runs it."""
    return parse_show(module.run_command(["systemctl", "show", "--property=" + PROPERTIES, *names], check_rc=True)[1], names)


def parse_show(text, names):
    """`systemctl show --property=Id,… a b` -> {name as given: properties}; systemd answers in the given order."""
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.strip().split("\n\n")]
    return dict(zip(names, blocks))  # noqa: B905 - strict= is not in Python 3.9


def started_at(properties, now, monotonic):
    """When a unit was last started, in seconds since the epoch; 0 when never.

    systemd reports microseconds of the monotonic clock, which adjustments of the clock do not change.
    """
    value = int(properties.get("InactiveExitTimestampMonotonic") or 0)
    return now - (monotonic - value / 1e6) if value else 0.0


def plan(names, state, before, stale=()):
    """The systemctl commands, in order; empty when there is nothing to do. Units in `stale` run with an older configuration."""
    if state == "restarted":
        return [["systemctl", "restart", name] for name in names]
    if state == "stopped":
        wrong = [
            name for name in names if before[name]["ActiveState"] in ("active", "activating") or before[name]["UnitFileState"] == "enabled"
        ]
        # In one call, because systemd reads all unit files again after each.
        return [["systemctl", "disable", "--now", *wrong]] if wrong else []
    commands = []
    for name in names:
        disabled, runs = before[name]["UnitFileState"] == "disabled", before[name]["ActiveState"] == "active"
        if disabled:
            commands.append(["systemctl", "enable"] + ([] if runs else ["--now"]) + [name])
        elif not runs:
            commands.append(["systemctl", "start", name])
        if runs and name in stale:
            commands.append(["systemctl", "restart", name])
    return commands
