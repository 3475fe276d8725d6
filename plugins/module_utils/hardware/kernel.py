# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel that a node will run, its headers and its DKMS modules. While an image is built, another kernel usually runs."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key

DEB = ("debian", "ubuntu")


class KernelError(ValueError):
    """The kernel or its modules cannot be used as asked; the text is one sentence for the user."""


def releases(root="/"):
    """Releases of the installed kernels, oldest first: those with an image, or those with headers when none has an image."""
    folder = os.path.join(root, "lib/modules")
    names = sorted(os.listdir(folder), key=version_key) if os.path.isdir(folder) else []
    paths = ("lib/modules/%s/vmlinuz", "boot/vmlinuz-%s")
    images = [name for name in names if any(os.path.exists(os.path.join(root, path % name)) for path in paths)]
    return images or [name for name in names if has_headers(name, root)]


def has_headers(release, root="/"):
    """Whether the headers of a release are installed, which a build of modules needs."""
    return os.path.exists(os.path.join(root, "lib/modules", release, "build/Makefile"))


def target(have, wanted=""):
    """The release that a node will run: the wanted one, else the newest installed one; "" for a node without a kernel."""
    if wanted and wanted not in have:
        raise KernelError(
            "Kernel %s is not installed (installed: %s); name its packages in kernel_packages." % (wanted, ", ".join(have) or "none")
        )
    return wanted or (have[-1] if have else "")


def _rpm(release, part):
    """The package with a part of a kernel, as NAME=VERSION-RELEASE. A release ends with the architecture, a package's version does not."""
    series = re.match(r"(\d+\.\d+)\..*\.amzn2023\.", release)
    # Amazon Linux 2023 calls the package of its first series kernel; later series have packages named after them.
    prefix = "kernel" + series.group(1) if series and series.group(1) != "6.1" else "kernel"
    return "%s-%s=%s" % (prefix, part, release.rpartition(".")[0])


def header_packages(release, system):
    """The packages that have the headers of a release. system: the ID of os-release."""
    return ["linux-headers-" + release] if system in DEB else [_rpm(release, "devel")]


def extra_packages(release, system):
    """The packages with the modules of a release that its main package leaves out, such as ib_umad. Debian's leaves out none."""
    if system == "debian":
        return []
    return ["linux-modules-extra-" + release] if system in DEB else [_rpm(release, "modules-extra")]


def of_the_kernel(packages):
    """The installed packages whose update would bring another kernel."""
    debian = r"linux-(image|headers|modules|aws|generic|virtual|cloud|gcp|azure)"
    others = r"kernel(\d+\.\d+)?(-core|-modules|-modules-core|-modules-extra|-devel)?$"
    return sorted(name for name in packages if re.match(r"%s($|-)|%s" % (debian, others), name))


def parse_dkms(text):
    """`dkms status` -> [{module, version, kernel, status}], in both formats of dkms; kernel is "" for a module that was never built."""
    out = []
    for line in text.splitlines():
        match = re.match(r"([^/,\s]+)(?:/|, )([^,:\s]+)(?:, ([^,]+), ([^:]+))?: (.*)", line)
        if match:
            module, version, kernel, _arch, status = match.groups()
            out.append(
                {"module": module, "version": version, "kernel": kernel or "", "status": status.split()[0].strip(",") if status else ""}
            )
    return out


def compiler_line(log):
    """The line of a build log that names the cause: the compiler's first error, else make's."""
    for expression in (r"^.*: (?:fatal )?error: .*$", r"^ERROR.*$", r"^.*\*\*\* .*$"):
        match = re.search(expression, log, re.MULTILINE)
        if match:
            line = re.sub(r"^/var/lib/dkms/[^/]+/[^/]+/build/", "", match.group(0).strip())
            return line.replace("\u2018", "'").replace("\u2019", "'")[:300]
    return ""


def dkms_fault(module, release, status, logs):
    """Why a kernel lacks a module, as one sentence with the remedy; "" when the module is installed.

    status: the result of parse_dkms. logs: {path: text} of the module's make.log files.
    """
    entries = [each for each in status if re.match(module, each["module"])]
    if any(each["kernel"] == release and each["status"].startswith("installed") for each in entries):
        return ""
    if not entries:
        return "DKMS has no module %s; install the package that brings its source." % module
    name, version = entries[-1]["module"], entries[-1]["version"]
    said = [(path, compiler_line(text)) for path, text in sorted(logs.items())]
    said = [(path, line) for path, line in said if line]
    if said:
        remedy = "take a driver that knows this kernel, or an older kernel in kernel_packages"
        message = "DKMS did not build %s %s for kernel %s: %s; %s (the whole log is %s)."
        return message % (name, version, release, said[0][1], remedy, said[0][0])
    message = "DKMS has not built %s %s for kernel %s; install the headers of that kernel and run `dkms autoinstall -k %s`."
    return message % (name, version, release, release)
