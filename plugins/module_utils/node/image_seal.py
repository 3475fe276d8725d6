# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must not be in an image, and the list of what is in it (CycloneDX).

All paths are below `root`, so that tests can use another one.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import stat
import sys
import uuid

SBOM = "/etc/muster/sbom.cdx.json"
# Machines from one image must differ in these files, and nobody's access or history may be copied.
GONE = (
    "/etc/ssh/ssh_host_*",
    # With those of an interrupted rotation.
    "/etc/munge/munge.key*",
    "/etc/slurm/*.key",
    "/etc/slurm/*.jwks",
    "/etc/slurm/muster-database-key.pem",
    # It may have the password of the database.
    "/etc/slurm/slurmdbd.conf",
    "/var/lib/slurm/slurmctld/*.key",
    # The password and the key of the endpoints of metrics, and what may hold credentials of receivers.
    "/etc/prometheus/muster",
    "/etc/prometheus/prometheus.yml",
    "/etc/prometheus/alertmanager.yml",
    "/etc/muster/metrics",
    "/etc/grafana/provisioning/datasources/muster.yaml",
    # The password for the directory, and what SSSD keeps of the passwords of people.
    "/etc/sssd/sssd.conf",
    "/var/lib/sss/db/*",
    "/var/lib/sss/secrets/*",
    "/var/lib/munge/munge.seed",
    "/var/lib/dbus/machine-id",
    "/var/lib/systemd/random-seed",
    "/var/lib/systemd/credential.secret",
    "/var/lib/cloud/*",
    "/var/lib/dhcp/*.lease*",
    "/var/lib/NetworkManager/*.lease",
    "/var/lib/amazon/ssm/*",
    *(
        home + each
        for home in ("/root", "/home/*")
        for each in (
            "/.ssh/authorized_keys*",
            "/.ssh/id_*",
            "/.ssh/known_hosts*",
            "/.*_history",
            "/.aws",
            "/.netrc",
            "/.git-credentials",
            "/.config/git/credentials",
            "/.docker/config.json",
            "/.config/containers/auth.json",
            "/.kube",
            "/.config/wandb",
            "/.cache/huggingface/token",
            "/.cache/huggingface/stored_tokens",
            "/.huggingface/token",
        )
    ),
    "/var/log/journal/*",
    "/var/log/*.gz",
    "/var/log/*.[0-9]",
    "/var/log/*/*.gz",
    "/var/log/*/*.[0-9]",
    "/var/log/amazon/ssm/*",
    "/var/crash/*",
    "/var/lib/systemd/coredump/*",
    "/var/mail/*",
    "/var/spool/mail/*",
    *(folder + each for folder in ("/tmp", "/var/tmp") for each in ("/*", "/.[!.]*")),
    # A node reads newer package lists when it installs something.
    "/var/lib/apt/lists/*",
    # The archives of installed packages: with CUDA these are gigabytes in every image.
    "/var/cache/apt/archives/*.deb",
    "/var/cache/apt/*.bin",
    "/var/cache/dnf/*",
    "/var/cache/libdnf5/*",
)
# Daemons that still run write here again.
BUSY = ("/tmp/", "/var/tmp/", "/var/log/")
# Daemons and systemd need these files to exist, and to be empty.
EMPTY = (
    "/etc/machine-id",
    "/var/log/*",
    "/var/log/*/*",
)


class SealError(Exception):
    """The image is not clean; the text is one sentence for the user."""


def dirt(root):
    """(paths to remove, files to empty) below `root`. Ansible removes the folder in /tmp from which this module runs."""
    # /var/spool/mail is usually a link to /var/mail.
    found = {path for pattern in GONE for path in glob.glob(root + pattern)}
    removed = sorted(path for path in found if not any(each.startswith(path + os.sep) for each in sys.path))
    emptied = [
        path
        for pattern in EMPTY
        for path in sorted(glob.glob(root + pattern))
        if path not in removed and not os.path.islink(path) and stat.S_ISREG(os.lstat(path).st_mode) and os.path.getsize(path)
    ]
    return removed, emptied


def clean(root):
    """Remove and empty them; SealError names one that could not be cleaned."""
    removed, emptied = dirt(root)
    for path in removed:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            _try(os.unlink, path)
    for path in emptied:
        _try(lambda each: os.truncate(each, 0), path)
    busy = tuple(root + folder for folder in BUSY)
    left = [path for kind in dirt(root) for path in kind if not path.startswith(busy)]
    if left:
        raise SealError("%s cannot be removed from the image; remove it in a task of your own and seal again." % left[0])


def _try(change, path):
    # The second call of dirt() finds what is left.
    with contextlib.suppress(OSError):
        change(path)


def sbom(manifest, system, version, machine):
    """CycloneDX 1.6 of a manifest's components and packages; the same manifest gives the same text."""
    kind = "deb" if system in ("debian", "ubuntu") else "rpm"
    distro = "%s-%s" % (system, version)
    parts = [
        {
            "type": "application",
            "bom-ref": "muster:%s" % name,
            "name": name,
            "version": entry["version"],
            "properties": [{"name": "muster:inputs_sha256", "value": entry["inputs_sha256"]}],
        }
        for name, entry in sorted(manifest["components"].items())
    ]
    for name, found in sorted(manifest["packages"].items()):
        purl = "pkg:%s/%s/%s@%s?arch=%s&distro=%s" % (kind, system, _quoted(name), _quoted(found), machine, distro)
        parts.append({"type": "library", "bom-ref": purl, "name": name, "version": found, "purl": purl})
    stack = manifest["stack"] or {}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "operating-system", "bom-ref": distro, "name": system, "version": version},
            "properties": [{"name": "muster:stack_%s" % key, "value": stack[key]} for key in sorted(stack) if stack[key]],
        },
        "components": parts,
    }
    # The specification asks for a different serial number for every different document.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": "urn:uuid:%s" % number}, indent=1, sort_keys=True) + "\n"


def _quoted(text):
    return text.replace("%", "%25").replace("+", "%2B").replace(":", "%3A")
