# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install packages of the distribution: what is missing, the command that installs it, and the reason when it fails.

`module` is the AnsibleModule that runs the commands.
"""

from __future__ import annotations

import glob
import os
import re
import time
from fnmatch import fnmatchcase

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard
from ansible_collections.muster.fleet.plugins.module_utils.node.manifest import parse_dpkg, parse_rpm

LISTS = "/var/lib/apt/lists"
DNF_MODULES = "/etc/dnf/modules.d"
# dnf(8), exit codes: another process has the lock.
DNF_LOCKED = 200
SYSTEMD = "/run/systemd/system"

# apt must not ask questions, and keeps files that somebody edited.
APT_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "DEBIAN_PRIORITY": "critical", "LC_ALL": "C.UTF-8", "NEEDRESTART_MODE": "l"}
KEEP_EDITED = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]


def missing(names, installed):
    """The names that are not installed; `installed` is {package: version}. A name may ask for a version as NAME=VERSION or NAME=PREFIX*."""
    asked = [each.partition("=")[::2] + (each,) for each in names]
    return [each for name, version, each in asked if name not in installed or not fnmatchcase(installed[name], version or "*")]


def apt_install(names, release="", lock_timeout=300, durable=True, simulate=False):
    """The apt-get command that installs packages."""
    command = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=%d" % lock_timeout, *KEEP_EDITED]
    if not durable:
        command += ["-o", "Dpkg::Options::=--force-unsafe-io"]
    if any("=" in name for name in names):
        # A version that is named is installed, also when the package is held or a later version is installed.
        command += ["--allow-change-held-packages", "--allow-downgrades"]
    if release:
        command += ["--target-release", release]
    return command + (["--simulate"] if simulate else []) + ["install", *names]


def apt_installed(out):
    """The packages that apt-get installed, or would install: {package: version}, from its output."""
    done = re.findall(r"^Setting up (\S+?)(?::\w+)? \((\S+)\) \.\.\.", out, re.MULTILINE)
    return dict(done or re.findall(r"^Inst (\S+?)(?::\w+)? (?:\[\S+\] )?\((\S+) ", out, re.MULTILINE))


def apt_reason(out, err):
    """Why apt-get failed, in one line: its errors, else its last line."""
    errors = re.findall(r"^E: (.+)$", err, re.MULTILINE)
    return "; ".join(each.rstrip(".") for each in errors) or (err.strip() or out.strip() or "it printed nothing").splitlines()[-1]


def stale(reason):
    """Whether newer package lists may help."""
    return bool(
        re.search(r"Unable to locate package|has no installation candidate|Failed to fetch|Version '.*' for '.*' was not found", reason)
    )


def busy(reason):
    """Whether another process reads the package lists at the moment."""
    return "Could not get lock" in reason or "Unable to lock" in reason


class PackageError(Exception):
    """Packages cannot be installed; the text is one sentence for the user."""


def installed(module, names=()):
    """{package: version} of the named packages that are installed on this node with dpkg, or of all packages."""
    return parse_dpkg(module.run_command(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *names])[1])


def lacking(module, names):
    """The named packages that are not installed on this node with dpkg."""
    return missing(names, installed(module, [name.partition("=")[0] for name in names]))


def read_lists(module, timeout):
    """Read apt's package lists again; wait while another process does the same."""
    until = time.monotonic() + timeout
    while True:
        # Translated descriptions are a third of the lists, and unpacking xz takes longer than downloading gz.
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
            raise PackageError("The package lists could not be read: %s; check the network and /etc/apt/sources.list.d." % reason)
        time.sleep(1)


def lists_are_young(age):
    return bool(glob.glob(LISTS + "/*_Packages*")) and time.time() - os.stat(LISTS).st_mtime < age


def run_apt(module, command):
    """Run apt-get install. When no service may start, let systemd read its unit files once after all packages instead of after each."""
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
        raise PackageError("apt-get cannot install %s: %s." % (", ".join(names), apt_reason(out, err)))
    return apt_installed(out)


def run_dnf(module, words, lock_timeout, what):
    """Run dnf and wait for its lock, or raise PackageError. dnf itself would wait without end."""
    until = time.monotonic() + lock_timeout
    command = ["dnf", "--quiet", "--assumeyes", "--setopt=install_weak_deps=False", "--setopt=exit_on_lock=1", *words]
    while True:
        rc, out, err = module.run_command(command)
        if rc != DNF_LOCKED or time.monotonic() > until:
            break
        time.sleep(2)
    if rc != 0:
        raise PackageError("dnf cannot %s: %s." % (what, " ".join((err or out).split()).rstrip(".")))


def installed_rpm(module, names):
    """{package: version} of the named packages that are installed on this node with rpm.

    Kernels may be installed in several versions; of these the one that a NAME=VERSION asks for counts.
    """
    asked = dict(each.partition("=")[::2] for each in names)
    out = module.run_command(["rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n", *asked])[1]
    have = {}
    for line in out.splitlines():
        for name, version in parse_rpm(line).items():
            if name not in have or fnmatchcase(version, asked.get(name) or "*"):
                have[name] = version
    return have


def dnf(module, names, lock_timeout):
    """Install what is missing with dnf and return {package: version}, or raise PackageError."""
    small = {name: name + "-minimal" for name in (each.partition("=")[0] for each in names)}
    have = installed_rpm(module, [*names, *small.values()])
    wanted = missing(names, have)
    if not wanted:
        return {}
    lacking_names = [name.partition("=")[0] for name in wanted]
    if not module.check_mode:
        # A package and its smaller build conflict, so dnf has to remove one and install the other at once.
        for name in [name for name in lacking_names if small[name] in have]:
            run_dnf(module, ["swap", small[name], name], lock_timeout, "replace %s by %s" % (small[name], name))
        # A version that is named is installed, also when the package is held.
        unlocked = ["--disableplugin=versionlock"] if any("=" in name for name in wanted) else []
        words = [name.replace("=", "-", 1) for name in wanted]
        run_dnf(module, [*unlocked, "install", *words], lock_timeout, "install %s" % ", ".join(words))
    have = installed_rpm(module, wanted)
    return {name: have.get(name, "") for name in lacking_names}


def enable_stream(module, stream, lock_timeout):
    """Enable a module stream, NAME:STREAM, with dnf; return it if it was not enabled yet, "" otherwise."""
    name, _colon, wanted = stream.partition(":")
    lines = read_text(os.path.join(DNF_MODULES, name + ".module"), "").splitlines()
    if not stream or {"stream=" + wanted, "state=enabled"} <= set(lines):
        return ""
    if not module.check_mode:
        # dnf refuses to enable a second stream of a module.
        run_dnf(module, ["module", "reset", name], lock_timeout, "reset the module %s" % name)
        run_dnf(module, ["module", "enable", stream], lock_timeout, "enable the module stream %s" % stream)
    return stream
