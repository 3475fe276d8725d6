# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: role_inputs
short_description: The SHA-256 of everything on which a role's install depends
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description:
  - Hashes the values of the variables that the role's C(install) entry point declares in C(meta/argument_specs.yml),
    the role's task, template, variable and file contents that the install phase may read, and the host's distribution and architecture.
  - Also hashes the stack's entries of the components in the variable C(phases_components), but not their mirror.
  - Hosts with the same digest get the same install.
options:
  _terms:
    description: Name of the role.
    required: true
"""

EXAMPLES = r"""
digest: "{{ lookup('muster.fleet.role_inputs', 'slurm') }}"
"""

RETURN = r"""
_raw:
  description: The digest in hexadecimal.
  type: list
  elements: str
"""

import hashlib
import json
import os

import yaml
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.muster.fleet.plugins.module_utils.stack.document import source_of

# Files of configure and verify may change without a new install.
SKIPPED_TASKS = ("configure", "verify")
FOLDERS = ("tasks", "vars", "templates", "files")
FACTS = ("distribution", "distribution_major_version", "architecture")


def role_folder(name):
    return os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..", "roles", name))


def file_digests(folder):
    """[(relative path, sha256)] of the files that the install phase of a role may read."""
    found = []
    for part in FOLDERS:
        for root, folders, names in os.walk(os.path.join(folder, part)):
            folders.sort()
            for name in sorted(names):
                if part == "tasks" and name.startswith(SKIPPED_TASKS):
                    continue
                path = os.path.join(root, name)
                with open(path, "rb") as handle:
                    found.append((os.path.relpath(path, folder), hashlib.sha256(handle.read()).hexdigest()))
    return found


def stack_part(stack, name, system, arch):
    """The stack's entry of a component on one system, and of the component that includes it."""
    source = source_of(stack, name, system, arch) or {}
    said = {key: value for key, value in stack.get(name, {}).items() if key != "sources"}
    bringer = source.get("bundled_in")
    return [name, said, source] + (stack_part(stack, bringer, system, arch) if bringer else [])


class LookupModule(LookupBase):
    """Lookup `role_inputs`."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        return [self.digest(term, variables or {}) for term in terms]

    def digest(self, role, variables):
        folder = role_folder(role)
        spec_path = os.path.join(folder, "meta", "argument_specs.yml")
        if not os.path.exists(spec_path):
            raise AnsibleLookupError(f"The role {role} has no {spec_path}; the manifest needs its argument specs.")
        with open(spec_path, encoding="utf-8") as handle:
            options = yaml.safe_load(handle)["argument_specs"].get("install", {}).get("options") or {}
        names = sorted(name for name in options if name in variables)
        values = {name: self._templar.template(variables[name]) for name in names}
        facts = variables.get("ansible_facts", {})
        material = {"variables": values, "files": file_digests(folder), "host": [str(facts.get(name)) for name in FACTS]}
        components = self._templar.template(variables.get("phases_components")) or []
        if components:
            stack, system, arch = (self._templar.template(variables[name]) for name in ("phases_stack", "phases_system", "phases_arch"))
            material["stack"] = [stack_part(stack, name, system, arch) for name in components]
        return hashlib.sha256(json.dumps(material, sort_keys=True, default=str).encode()).hexdigest()
