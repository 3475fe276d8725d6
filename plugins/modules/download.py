#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: download
short_description: Copy a verified download of the stack to a node
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - The controller downloads the file into its cache, where its name is its checksum, and copies it to the node when it differs.
  - Hosts and playbooks that need the same file download it once. An interrupted download or an answer 5xx is tried again.
  - Compares the SHA-256, or checks the signature and the fingerprint of its key. Removes a file that fails and names it.
  - Where only HTTPS vouches for a key, the first fetch writes its fingerprint into the site's lock file C(muster_lock_file), and a key with
    another one is refused from then on. A folder as C(muster_mirror) counts as HTTPS does, an address with C(http://) does not.
attributes:
  check_mode:
    description: Downloads nothing; a file that is not in the cache counts as a change.
    support: full
  diff_mode:
    description: As the module M(ansible.builtin.copy).
    support: full
options:
  source:
    description:
      - The source as P(muster.fleet.stack_source#filter) gives it.
      - Of a C(repository) the key is copied, as text and without other keys of the same file.
    type: dict
    required: true
  dest:
    description: Path on the node. Without it the file stays on the controller, for tasks that are delegated there.
    type: path
  mode:
    description: Mode as an octal string.
    type: str
    default: "0644"
"""

EXAMPLES = r"""
- name: Copy the installer
  muster.fleet.download:
    source: "{{ phases_stack | muster.fleet.stack_source('efa', phases_system, phases_arch, phases_mirror) }}"
    dest: /var/tmp/aws-efa-installer.tar.gz
"""

RETURN = r"""
file:
  description: Path on the controller.
  type: str
  returned: success
"""
