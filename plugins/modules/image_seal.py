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
  - Then takes out what belongs to one machine or to who built it, which is its identity, host keys, secrets that packages generated,
    state of cloud-init and of the Systems Manager agent, authorised keys, histories, logs and the packages that apt and dnf keep, and looks
    again whether it is gone.
  - After it nobody can log in by key any more, so it comes last; connections that are open stay so.
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
    description: Where the file system of the image is.
    type: path
    default: /
attributes:
  check_mode:
    description: Says what would be taken out.
    support: full
  diff_mode:
    description: Names what is taken out or emptied; never its content.
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
  description: What was taken out, or would be.
  returned: success
  type: list
  elements: str
emptied:
  description: What was left with nothing in it.
  returned: success
  type: list
  elements: str
packages:
  description: How many packages the list names.
  returned: success
  type: int
"""

import os
import platform
import shutil

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils import image_seal as logic
from ansible_collections.muster.fleet.plugins.module_utils import manifest


def read(path):
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


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
        document = manifest.parse(read(root + manifest.PATH), manifest.PATH)
        if not document["components"]:
            raise logic.SealError("%s names no component; install what the image is to carry first." % manifest.PATH)
        if not root:
            # Packages may have gone since the last role wrote them down.
            document["packages"] = manifest.installed_packages(shutil.which)
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        text = logic.sbom(document, module.params["system"].lower(), module.params["version"], machine)
        removed, emptied = logic.dirt(root)
        changed = text != read(root + logic.SBOM)
        if not module.check_mode:
            if changed:
                write(module, root + manifest.PATH, manifest.render(document))
                write(module, root + logic.SBOM, text)
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
