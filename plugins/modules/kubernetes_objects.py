#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: kubernetes_objects
short_description: Apply objects to a Kubernetes cluster
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Applies objects by server-side apply as the field manager C(muster), and says which of them changed. Misspelt fields are refused.
  - Uses the context that O(context) names and no other.
  - Tries again while the API server or the webhook of an operator does not answer yet.
attributes:
  check_mode:
    support: full
    description: Asks the API server for a dry run.
  diff_mode:
    support: none
    description: Names the objects that change.
options:
  kubeconfig:
    description: The kubeconfig. Without it, C(KUBECONFIG) or C(~/.kube/config).
    type: path
  context:
    description: The context of the kubeconfig.
    type: str
    required: true
  objects:
    description: The objects.
    type: list
    elements: dict
    default: []
  path:
    description: A file with more objects, as YAML documents, on the host where the module runs.
    type: path
  state:
    description: Whether the objects are to be there.
    type: str
    choices: [present, absent]
    default: present
  wait:
    description: Whether to wait until the Deployments among the objects are available.
    type: bool
    default: false
  timeout:
    description: Seconds to wait for answers, and for Deployments.
    type: int
    default: 180
requirements:
  - kubernetes
"""

EXAMPLES = r"""
- name: Create a namespace
  muster.fleet.kubernetes_objects:
    context: my-cluster
    objects:
      - apiVersion: v1
        kind: Namespace
        metadata: {name: training}
"""

RETURN = r"""
objects:
  description: The objects that changed, or would change, by kind and name.
  returned: success
  type: list
  elements: str
  sample: [Namespace training]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, Objects, connection

try:
    import yaml
except ImportError:
    yaml = None


def read(path):
    """The objects of a file. Raises ApiError."""
    if yaml is None:
        raise ApiError("Python has no yaml, which kubernetes_objects reads %s with; install the package PyYAML in Ansible's Python." % path)
    try:
        with open(path, encoding="utf-8") as file:
            # The definitions of operators have hundreds of kilobytes.
            return [each for each in yaml.load_all(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]
    except (OSError, yaml.YAMLError) as error:
        raise ApiError("%s cannot be read (%s); correct it." % (path, " ".join(str(error).split()))) from error


def main():
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path"},
            "context": {"type": "str", "required": True},
            "objects": {"type": "list", "elements": "dict", "default": []},
            "path": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "wait": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        wanted = params["objects"] + (read(params["path"]) if params["path"] else [])
        objects = Objects(connection(params["kubeconfig"] or "", params["context"], "kubernetes_objects"), params["timeout"])
        change = objects.apply if params["state"] == "present" else objects.remove
        changed = change(wanted, module.check_mode)
        if params["wait"] and params["state"] == "present" and not module.check_mode:
            objects.wait_available(wanted)
    except ApiError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(changed), objects=changed)


if __name__ == "__main__":
    main()
