#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: kubernetes_file
short_description: Copy a file of a claim from a Kubernetes cluster
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Starts a pod that mounts the claim read-only and prints one text file, writes it on this host, and removes the pod.
  - Uses the context that O(context) names and no other.
attributes:
  check_mode:
    support: full
    description: Reads the file, and writes nothing.
  diff_mode:
    support: none
    description: Says only whether the file changed.
options:
  kubeconfig:
    description: The kubeconfig. Without it, C(KUBECONFIG) or C(~/.kube/config).
    type: path
  context:
    description: The context of the kubeconfig.
    type: str
    required: true
  namespace:
    description: The namespace of the claim.
    type: str
    default: default
  claim:
    description: The claim, which the pod mounts at C(/checkpoints) as jobs do.
    type: str
    required: true
  image:
    description: An image with C(cat).
    type: str
    required: true
  src:
    description: The file as jobs see it, below C(/checkpoints).
    type: str
    required: true
  dest:
    description: The file on this host.
    type: path
    required: true
  timeout:
    description: Seconds for which the pod may wait and run.
    type: int
    default: 120
requirements:
  - kubernetes
"""

EXAMPLES = r"""
- name: Read the log of a training
  muster.fleet.kubernetes_file:
    context: my-cluster
    claim: fsx-claim
    image: registry.example.com/trainer:1
    src: /checkpoints/train-2f604121ef80/train.jsonl
    dest: /tmp/train.jsonl
"""

RETURN = r"""
size:
  description: Characters of the file.
  returned: success
  type: int
  sample: 8192
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, Objects, connection
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.facts import output_of


def pod(params):
    """The pod that prints the file."""
    name = "muster-file-" + hashlib.sha256(params["src"].encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": params["namespace"]},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "file",
                    "image": params["image"],
                    "command": ["cat", "--", params["src"]],
                    "volumeMounts": [{"name": "claim", "mountPath": "/checkpoints", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": params["claim"]}}],
        },
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path"},
            "context": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": "default"},
            "claim": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "src": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        objects = Objects(connection(params["kubeconfig"] or "", params["context"], "kubernetes_file"), params["timeout"])
        ended, text = output_of(objects, pod(params), params["timeout"])
    except ApiError as error:
        module.fail_json(msg=str(error))
    if not ended:
        module.fail_json(msg="%s of claim %s cannot be read: %s." % (params["src"], params["claim"], " ".join(text.split()).rstrip(".")))
    before = ""
    if os.path.exists(params["dest"]):
        with open(params["dest"], encoding="utf-8") as file:
            before = file.read()
    if before != text and not module.check_mode:
        with open(params["dest"], "w", encoding="utf-8") as file:
            file.write(text)
    module.exit_json(changed=before != text, size=len(text))


if __name__ == "__main__":
    main()
