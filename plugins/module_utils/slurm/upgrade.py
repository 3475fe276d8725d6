# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which version of Slurm can follow which, and the steps of an upgrade on each host."""

from __future__ import annotations

import re

# The major releases in their order. They came every nine months until 24.05, and every May and November since.
MAJORS = ("20.02", "20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11") + tuple(
    "%d.%s" % (year, month) for year in range(25, 45) for month in ("05", "11")
)
# From this release on a daemon understands the three majors before its own, earlier ones two.
THREE_SINCE = "24.11"
# Slurm's order: a daemon must not be newer than the one that it reports to.
STEPS = ("database", "controller", "compute", "login")


class UpgradeError(ValueError):
    """The upgrade cannot be made; the text is one sentence for the user."""


def name_of(text):
    """`slurm-wlm 24.11.5` -> 24.11.5; a build from source may have a word behind it: 24.11.5-nvml."""
    return (text or "").split()[-1] if (text or "").split() else ""


def version(text):
    """`slurm-wlm 24.11.5` or `24.11.5-nvml` -> (24, 11, 5); UpgradeError when it holds no version of Slurm."""
    found = re.search(r"(?<!\d)(\d\d)\.(\d\d)(?:\.(\d+))?", text or "")
    if not found:
        raise UpgradeError("%r is no version of Slurm, which looks like 24.11.5." % (text or "").strip()[:60])
    return tuple(int(part or 0) for part in found.groups())


def dotted(parts):
    """(24, 11, 5) -> 24.11.5; (24, 11) -> 24.11."""
    return ".".join(["%02d" % part for part in parts[:2]] + [str(part) for part in parts[2:]])


def major(parts):
    """(24, 11, 5) -> 24.11; UpgradeError for a number that is no release."""
    name = dotted(parts[:2])
    if name not in MAJORS:
        raise UpgradeError("Slurm has no release %s; known are %s to %s." % (name, MAJORS[0], MAJORS[-1]))
    return name


def accepted(name):
    """The majors before `name` whose database, state files and daemons it understands, newest first."""
    place = MAJORS.index(name)
    depth = 3 if place >= MAJORS.index(THREE_SINCE) else 2
    return list(reversed(MAJORS[max(0, place - depth) : place]))


def way(old, new):
    """The majors of the steps from one to the other, the last one included; each step is as long as it may be."""
    steps, here = [], old
    while here != new:
        later = MAJORS[MAJORS.index(here) + 1 : MAJORS.index(new) + 1]
        here = [name for name in later if here in accepted(name)][-1]
        steps.append(here)
    return steps


def refuse_distance(host, old, new):
    """Raise UpgradeError when the version `old` of a host cannot become `new` in one step."""
    if old > new:
        raise UpgradeError(
            "Slurm %s on %s is newer than %s, and Slurm never goes back over its converted database and state files; restore the copies of "
            "before an upgrade instead." % (dotted(old), host, dotted(new))
        )
    before, after = major(old), major(new)
    if before != after and before not in accepted(after):
        raise UpgradeError(
            "Slurm %s on %s cannot become %s in one step, because %s understands only %s; go by way of %s."
            % (dotted(old), host, dotted(new), after, listed(accepted(after)), listed(way(before, after)[:-1]))
        )


def listed(words):
    """a, b and c."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def target(offered, wanted, host):
    """The name of the version to upgrade to: the one called `wanted`, or the newest on offer that begins with its numbers."""
    have = sorted({name_of(text) for text in offered}, key=lambda name: (version(name), name))
    if wanted in have:
        return wanted
    digits = re.findall(r"\d+", wanted or "")
    fitting = [name for name in have if list(version(name)[: len(digits)]) == [int(part) for part in digits] and not re.search("-", wanted)]
    if not fitting:
        raise UpgradeError(
            "Slurm %s is offered by no source of %s, which has %s; set slurm_version to what there is, or slurm_apt_source or "
            "slurm_sources to where it is." % (wanted or "of any version", host, listed(have) or "none")
        )
    return fitting[-1]


def plan(hosts, offered, wanted, source_host):
    """What an upgrade has to do.

    hosts: {name: {version, functions, unfinished}}, version as a Slurm command says it, functions as in the role slurm, unfinished the
    steps that an earlier upgrade began, as VERSION/STEP. offered: versions that the sources of `source_host` have. wanted: the version
    asked for, or its first numbers, or "". Returns {from, to, steps}: the oldest version, the new one, and the hosts of each step that
    have not done it.
    """
    bare = sorted(name for name, host in hosts.items() if not host["version"].strip())
    if bare:
        raise UpgradeError("Slurm is not installed on %s; run playbooks/provision.yml before an upgrade." % listed(bare))
    have = {name: name_of(host["version"]) for name, host in hosts.items()}
    to = target(offered, wanted, source_host)
    for name, old in sorted(have.items()):
        refuse_distance(name, version(old), version(to))

    def open_step(name, step):
        host = hosts[name]
        return step in host["functions"] and (have[name] != to or "%s/%s" % (to, step) in host["unfinished"])

    steps = {step: [name for name in hosts if open_step(name, step)] for step in STEPS}
    return {"from": min(have.values(), key=version), "to": to, "steps": steps}
