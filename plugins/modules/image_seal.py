#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: image_seal
short_description: Make a machine ready to become an image
version_added: 0.1.0
description:
  - Brings the package inventory of V(/etc/muster/manifest.json) up to date, and writes V(/etc/muster/sbom.cdx.json), a CycloneDX list of
    what it says is installed.
  - Then removes what belongs to one machine or to its builder, that is its identity, host keys, secrets that packages generated,
    state of cloud-init and of the Systems Manager agent, keys and known hosts of SSH, credentials of common tools in homes, histories,
    mail, core dumps, C(/tmp) and C(/var/tmp), logs, and the lists and packages that apt and dnf keep, and looks again whether it is gone.
  - From then on journald keeps the journal in memory, so that the image has none of its last lines.
  - Run it last, because afterwards nobody can log in by key. Open connections stay open.
author:
  - The Muster developers (@muster-fleet)
options:
  system:
    description: The distribution, as V(/etc/os-release) names it.
    type: str
    required: true
  version:
    description: Its version.
    type: str
    required: true
  root:
    description: The root of the image's file system.
    type: path
    default: /
attributes:
  check_mode:
    description: Reports what would be removed.
    support: full
  diff_mode:
    description: Names the files that are removed or emptied, never their contents.
    support: full
"""

EXAMPLES = r"""
- name: Seal the image
  muster.fleet.image_seal:
    system: debian
    version: "13"
"""

RETURN = r"""
removed:
  description: The files that were removed, or would be.
  returned: success
  type: list
  elements: str
emptied:
  description: The files that were emptied, or would be.
  returned: success
  type: list
  elements: str
packages:
  description: The number of packages in the list.
  returned: success
  type: int
"""

import os
import platform
import shutil

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import image_seal as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest


def write(module, path, text):
    temporary = os.path.join(module.tmpdir, "image_seal")
    with open(temporary, "w", encoding="utf-8") as handle:
        handle.write(text)
    module.atomic_move(temporary, path)
    os.chmod(path, 0o644)


def main():
    module = AnsibleModule(
        argument_spec={
            "system": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"].rstrip("/")
    try:
        document = manifest.parse(read_text(root + manifest.PATH, ""), manifest.PATH)
        if not document["components"]:
            raise logic.SealError("%s has no component; install the image's components first." % manifest.PATH)
        if not root:
            # Packages may have been removed since the last role wrote the manifest.
            document["packages"] = manifest.installed_packages(shutil.which)
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        text = logic.sbom(document, module.params["system"].lower(), module.params["version"], machine)
        removed, emptied = logic.dirt(root)
        changed = text != read_text(root + logic.SBOM, "")
        if not module.check_mode:
            if changed:
                write(module, root + manifest.PATH, manifest.render(document))
                write(module, root + logic.SBOM, text)
            if not root and shutil.which("journalctl"):
                module.run_command(["journalctl", "--relinquish-var"])  # where journald does not run, nothing writes the journal
            logic.clean(root)
    except (logic.SealError, manifest.ManifestError) as error:
        module.fail_json(msg=str(error))
    listing = "".join("%s\n" % path for path in removed + emptied)
    module.exit_json(
        changed=bool(changed or removed or emptied),
        removed=removed,
        emptied=emptied,
        packages=len(document["packages"]),
        diff={"before": listing, "after": ""},
    )


if __name__ == "__main__":
    main()
