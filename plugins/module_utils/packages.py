# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installing packages of the distribution: what is missing, the command that brings it, and what it said."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

# Nothing may ask a person, and a file that somebody edited stays.
APT_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "DEBIAN_PRIORITY": "critical", "LC_ALL": "C.UTF-8", "NEEDRESTART_MODE": "l"}
KEEP_EDITED = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]


def missing(names, installed):
    """The names that are not installed; `installed` is {package: version}, a name may ask for a version as NAME=VERSION or NAME=PREFIX*."""
    asked = [each.partition("=")[::2] + (each,) for each in names]
    return [each for name, version, each in asked if name not in installed or not fnmatchcase(installed[name], version or "*")]


def apt_install(names, release="", lock_timeout=300, durable=True, simulate=False):
    """The apt-get command that installs them."""
    command = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=%d" % lock_timeout, *KEEP_EDITED]
    if not durable:
        command += ["-o", "Dpkg::Options::=--force-unsafe-io"]
    if any("=" in name for name in names):
        # Who names a version means it, also where the package is held at another or has a later one.
        command += ["--allow-change-held-packages", "--allow-downgrades"]
    if release:
        command += ["--target-release", release]
    return command + (["--simulate"] if simulate else []) + ["install", *names]


def apt_installed(out):
    """What apt-get set up, or would: {package: version}, from its output."""
    done = re.findall(r"^Setting up (\S+?)(?::\w+)? \((\S+)\) \.\.\.", out, re.MULTILINE)
    return dict(done or re.findall(r"^Inst (\S+?)(?::\w+)? (?:\[\S+\] )?\((\S+) ", out, re.MULTILINE))


def apt_reason(out, err):
    """Why apt-get refused, in one line: its errors, else its last words."""
    errors = re.findall(r"^E: (.+)$", err, re.MULTILINE)
    return "; ".join(each.rstrip(".") for each in errors) or (err.strip() or out.strip() or "it says nothing").splitlines()[-1]


def stale(reason):
    """Whether newer package lists may help against this reason."""
    return bool(
        re.search(r"Unable to locate package|has no installation candidate|Failed to fetch|Version '.*' for '.*' was not found", reason)
    )


def busy(reason):
    """Whether somebody else reads package lists just now."""
    return "Could not get lock" in reason or "Unable to lock" in reason
