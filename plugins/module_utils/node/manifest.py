# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest `/etc/muster/manifest.json` (muster.manifest/1): what was installed, from which inputs, and what is missing now."""

from __future__ import annotations

import json
import os
import re
import subprocess

SCHEMA = "muster.manifest/1"
PATH = "/etc/muster/manifest.json"


class ManifestError(ValueError):
    """The manifest cannot be used; the text is one sentence for the user."""


def empty():
    return {"schema": SCHEMA, "stack": None, "components": {}, "packages": {}}


def parse(text, path=PATH):
    """Read a manifest's JSON text; an empty text is an empty manifest."""
    if not text.strip():
        return empty()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ManifestError("The manifest %s is not JSON (%s); remove it and install again." % (path, error)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ManifestError("The manifest %s is not of schema %s; remove it and install again." % (path, SCHEMA))
    return document


def render(document):
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def differences(entry, inputs_sha256, exists, versions, wanted=()):
    """Why a component's entry does not describe the node: a list of sentences, empty when it does.

    entry: the manifest's entry or None. exists: path -> bool. versions: package -> installed version or None. wanted: the packages that the
    component must have on this node; an image may have more of them for other kinds of nodes.
    """
    if entry is None:
        return ["not installed yet"]
    reasons = []
    if inputs_sha256 and entry["inputs_sha256"] != inputs_sha256:
        reasons.append("its install variables or files changed")
    reasons += ["%s is missing" % path for path in entry["artefacts"] if not exists(path)]
    reasons += ["package %s is not part of it yet" % name for name in wanted if name not in entry["packages"]]
    for name, version in sorted(entry["packages"].items()):
        found = versions.get(name)
        if found != version:
            reasons.append("package %s: expected %s, found %s" % (name, version, found or "none"))
    return reasons


def space_fault(needs, known, free):
    """Why the components that are not in the manifest yet do not fit on the disk, or "". needs: component -> MiB. free: MiB."""
    wanted = {name: needs[name] for name in needs if name not in known}
    if sum(wanted.values()) <= free:
        return ""
    return "%s together need %d MiB on / and %d MiB are free; give the node a larger disk or free some." % (
        ", ".join(wanted),
        sum(wanted.values()),
        free,
    )


def parse_dpkg(text):
    """`dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'` -> {package: version} of the installed ones."""
    rows = (line.split() for line in text.splitlines())
    # The two letters are the wanted and the actual status: a package on hold (hi) is installed as well as another (ii).
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2][1:2] == "i"}


def parse_rpm(text):
    """`rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\\n'` -> {package: version}."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def installed_packages(which, run=subprocess.run):
    """{package: version} of this node, by its package manager; `which` finds a program (shutil.which)."""
    if which("dpkg-query"):
        done = run(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n"], stdout=subprocess.PIPE, check=True)
        return parse_dpkg(done.stdout.decode())
    if which("rpm"):
        done = run(["rpm", "-qa", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n"], stdout=subprocess.PIPE, check=True)
        return parse_rpm(done.stdout.decode())
    raise ManifestError("This node has neither dpkg-query nor rpm; Muster installs on Debian, Ubuntu and RPM systems.")


def upstream_version(version):
    """The upstream part of a package version: 1:24.11.5-4+deb13u1 -> 24.11.5."""
    return re.sub(r"-[^-]*$", "", re.sub(r"^\d+:", "", version))


def entry(*, inputs_sha256, artefacts, packages, installed, version, seconds, now, verified=""):
    """A new manifest entry; raises ManifestError when a package or artefact that it names is missing."""
    missing = [name for name in packages if name not in installed]
    if missing:
        raise ManifestError("The package %s is not installed although its role finished; look at the role's install tasks." % missing[0])
    missing = [path for path in artefacts if not os.path.exists(path)]
    if missing:
        raise ManifestError("The artefact %s is missing although its role finished; look at the role's install tasks." % missing[0])
    if not version and packages:
        version = upstream_version(installed[packages[0]])
    return {
        **({"verified": verified} if verified else {}),
        "version": version or "",
        "inputs_sha256": inputs_sha256,
        "artefacts": sorted(artefacts),
        "packages": {name: installed[name] for name in sorted(packages)},
        "seconds": seconds,
        "installed": now,
    }
