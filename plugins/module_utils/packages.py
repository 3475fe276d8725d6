# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installing packages of the distribution: what is missing, the command that brings it, and what it said.

`module` is the AnsibleModule that runs the commands.
"""

from __future__ import annotations

import glob
import os
import re
import time
from fnmatch import fnmatchcase

from ansible_collections.muster.fleet.plugins.module_utils import service_guard
from ansible_collections.muster.fleet.plugins.module_utils.manifest import parse_dpkg

LISTS = "/var/lib/apt/lists"
SYSTEMD = "/run/systemd/system"

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


class PackageError(Exception):
    """Packages that cannot be had, in one sentence."""


def installed(module, names=()):
    """{package: version} of what this node, which has dpkg, has of the names, or of all packages."""
    return parse_dpkg(module.run_command(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *names])[1])


def lacking(module, names):
    """The names that this node, which has dpkg, has not installed."""
    return missing(names, installed(module, [name.partition("=")[0] for name in names]))


def read_lists(module, timeout):
    """Read apt's package lists again, waiting for somebody who does the same."""
    until = time.monotonic() + timeout
    while True:
        # Descriptions in other languages are a third of what apt reads, and xz takes longer to unpack than gz to come.
        command = [
            "apt-get",
            "--quiet",
            "--error-on=any",
            "-o",
            "Acquire::Languages=none",
            "-o",
            "Acquire::CompressionTypes::Order::=gz",
            "update",
        ]
        rc, out, err = module.run_command(command, environ_update=APT_ENVIRONMENT)
        reason = apt_reason(out, err)
        if rc == 0:
            os.utime(LISTS)
            return
        if not busy(reason) or time.monotonic() > until:
            raise PackageError("The package lists could not be read: %s; look at the network and at /etc/apt/sources.list.d." % reason)
        time.sleep(1)


def lists_are_young(age):
    return bool(glob.glob(LISTS + "/*_Packages*")) and time.time() - os.stat(LISTS).st_mtime < age


def run_apt(module, command):
    """Run apt-get install. Where no service may start, systemd reads its unit files once, after all packages, and not after each."""
    once = os.path.isdir(SYSTEMD) and service_guard.refused() and not module.check_mode
    environment = dict(APT_ENVIRONMENT, SYSTEMD_OFFLINE="1") if once else APT_ENVIRONMENT
    result = module.run_command(command, environ_update=environment)
    if once:
        module.run_command(["systemctl", "daemon-reload"])
    return result


def apt(module, names, *, release="", lists_age=3600, lock_timeout=300, durable=True):
    """Install with apt-get and return {package: version}, or raise PackageError."""
    young = lists_are_young(lists_age)
    if not young:
        read_lists(module, lock_timeout)
    command = apt_install(names, release, lock_timeout, durable, simulate=module.check_mode)
    rc, out, err = run_apt(module, command)
    if rc != 0 and young and stale(apt_reason(out, err)):
        read_lists(module, lock_timeout)
        rc, out, err = run_apt(module, command)
    if rc != 0:
        raise PackageError("apt-get installs none of %s: %s." % (", ".join(names), apt_reason(out, err)))
    return apt_installed(out)
