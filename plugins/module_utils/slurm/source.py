# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds of Slurm from source: which tarballs are built, and whether the active version may change."""

from __future__ import annotations

import re

# The first release with sackd and with daemons that tell systemd when they are ready.
OLDEST = (23, 11)


class SourceError(ValueError):
    """The builds cannot be made; the text is one sentence for the user."""


def builds(sources, wanted, mirror):
    """(what to build, the version that is to be active).

    sources: [{version, url, sha256, configure?, packages?}]. mirror: address or folder where the files of all urls lie instead, or "".
    """
    if not sources:
        raise SourceError("slurm_install_method is source and slurm_sources is empty; give it a version, url and sha256.")
    versions = [source["version"] for source in sources]
    made = []
    for source in sources:
        version, sha256 = source["version"], source["sha256"].lower()
        if not re.fullmatch(r"\d\d\.\d\d\.\d+(-[a-z0-9]+)?", version):
            raise SourceError("slurm_sources has the version %s; write it as 24.11.5, or 24.11.5-nvml for another build of it." % version)
        if versions.count(version) > 1:
            raise SourceError("slurm_sources has version %s %d times; leave one." % (version, versions.count(version)))
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise SourceError("Slurm %s has no sackd and is not built by this role; take 23.11 or later." % version)
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise SourceError("The sha256 of version %s in slurm_sources is not 64 hexadecimal digits." % version)
        url = "%s/%s" % (mirror.rstrip("/"), source["url"].rstrip("/").rsplit("/", 1)[-1]) if mirror else source["url"]
        made.append(
            {
                "version": version,
                "url": "file://" + url if url.startswith("/") else url,
                "sha256": sha256,
                "configure": list(source.get("configure") or []),
                "packages": list(source.get("packages") or []),
            }
        )
    if not wanted and len(made) == 1:
        wanted = versions[0]
    if wanted not in versions:
        said = (
            "slurm_version %s is not in slurm_sources, which has" % wanted
            if wanted
            else "slurm_version must say which of slurm_sources is active:"
        )
        raise SourceError("%s %s." % (said, ", ".join(versions)))
    return made, wanted


def switch_fault(now, wanted, running):
    """Why the active version may not simply be another one; "" when it may. running: daemons of Slurm that run on the node."""
    if now == wanted or not running:
        return ""
    return "Slurm %s is active and %s runs with it; playbooks/slurm_upgrade.yml takes a running cluster from there to %s." % (
        now or "of the packages",
        running[0],
        wanted,
    )
