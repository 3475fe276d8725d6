# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel that a node will run, its headers, and what DKMS made for it. That is seldom the kernel which runs while an image is built."""

from __future__ import annotations

import os
import re


class KernelError(ValueError):
    """Something about the kernel that cannot be; the text is one sentence for the user."""


def order(release):
    """A key to sort releases by: numbers as numbers."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-z]+", release)]


def releases(root="/"):
    """Releases of the kernels that are installed, oldest first: those with an image, or where none has one those with headers."""
    folder = os.path.join(root, "lib/modules")
    names = sorted(os.listdir(folder), key=order) if os.path.isdir(folder) else []
    places = ("lib/modules/%s/vmlinuz", "boot/vmlinuz-%s")
    images = [name for name in names if any(os.path.exists(os.path.join(root, place % name)) for place in places)]
    return images or [name for name in names if has_headers(name, root)]


def has_headers(release, root="/"):
    """Whether modules can be built for it."""
    return os.path.exists(os.path.join(root, "lib/modules", release, "build/Makefile"))


def target(have, wanted=""):
    """The release that a node is to run: the wanted one, otherwise the newest that is installed; empty for a node without a kernel."""
    if wanted and wanted not in have:
        raise KernelError(
            "Kernel %s is not installed, there is %s; name its packages in kernel_packages." % (wanted, ", ".join(have) or "none")
        )
    return wanted or (have[-1] if have else "")


def header_packages(release, family):
    """Packages with the headers of a release."""
    if family == "Debian":
        return ["linux-headers-" + release]
    series = re.match(r"(\d+\.\d+)\..*\.amzn2023\.", release)
    # Amazon Linux 2023 has its first series as kernel, and each later one as a package of its own.
    prefix = "kernel" + series.group(1) if series and series.group(1) != "6.1" else "kernel"
    return ["%s-devel-%s" % (prefix, release)]


def of_the_kernel(packages):
    """Those of the installed packages that would bring another kernel."""
    debian = r"linux-(image|headers|modules|aws|generic|virtual|cloud|gcp|azure)"
    others = r"kernel(\d+\.\d+)?(-core|-modules|-devel)?$"
    return sorted(name for name in packages if re.match(r"%s($|-)|%s" % (debian, others), name))


def parse_dkms(text):
    """`dkms status` -> [{module, version, kernel, status}] of both forms that dkms has had; kernel is empty for what was never built."""
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
    """The line of a build's log that says what is wrong: the compiler's first error, otherwise make's."""
    for expression in (r"^.*: (?:fatal )?error: .*$", r"^ERROR.*$", r"^.*\*\*\* .*$"):
        match = re.search(expression, log, re.MULTILINE)
        if match:
            line = re.sub(r"^/var/lib/dkms/[^/]+/[^/]+/build/", "", match.group(0).strip())
            return line.replace("\u2018", "'").replace("\u2019", "'")[:300]
    return ""


def dkms_fault(module, release, status, logs):
    """Why a module is not there for a kernel, as one sentence with what to do; empty when it is.

    status: what parse_dkms gave. logs: {path: text} of the module's make.log files.
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
