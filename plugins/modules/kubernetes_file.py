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
  - The pod has no token of a service account, follows no link out of the claim and opens nothing but a regular file.
  - Of a file that is longer than O(most) it copies the first quarter and the last three quarters of O(most), cut at line ends.
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
    description: An image with a shell and the programs C(head), C(readlink), C(sed), C(tail) and C(wc).
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
  most:
    description: Bytes that are copied at most. A kubelet keeps the last 10 MiB of a pod's log, if nobody changed that.
    type: int
    default: 4194304
    version_added: 0.4.0
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
  description: Characters that were copied.
  returned: success
  type: int
  sample: 8192
left_out:
  description: Bytes in the middle of the file that were not copied.
  returned: success
  type: int
  sample: 0
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes import literal
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, Objects, connection
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.facts import output_of

# The first line of the output is the file's size. A link in the claim may lead to a file of the image, which is none of the claim's.
PRINT = """\
real=$(readlink -f "$1") || real=
[ -e "$1" ] || [ -L "$1" ] || { echo it does not exist; exit 1; }
case $real in "$3"/*) ;; *) echo it is a link that leads out of the claim; exit 1 ;; esac
[ ! -L "$1" ] || { echo it is a link; exit 1; }
[ -f "$1" ] || { echo it is not a regular file; exit 1; }
size=$(wc -c < "$1") || exit 1
echo $((size))
if [ "$size" -le "$2" ]; then head -c "$2" "$1"; exit; fi
head -c $(($2 / 4)) "$1" | sed '$d'
tail -c $(($2 / 4 * 3)) "$1" | head -c $(($2 / 4 * 3)) | sed 1d
"""
# Longer than any size in the first line.
FIRST_LINE = 32


def copied(text):
    """(size of the file, its content as far as it was printed). Raises ValueError when the log is not whole."""
    first, _end, content = text.partition("\n")
    return int(first), content


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
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": "file",
                    "image": params["image"],
                    "command": ["sh", "-c", literal(PRINT), "sh", literal(params["src"]), str(params["most"]), "/checkpoints"],
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
            "most": {"type": "int", "default": 4 << 20},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        objects = Objects(connection(params["kubeconfig"] or "", params["context"], "kubernetes_file"), params["timeout"])
        ended, text = output_of(objects, pod(params), params["timeout"], params["most"] + FIRST_LINE)
    except ApiError as error:
        module.fail_json(msg=str(error))
    if not ended:
        module.fail_json(msg="%s of claim %s cannot be read: %s." % (params["src"], params["claim"], " ".join(text.split()).rstrip(".")))
    try:
        size, text = copied(text)
    except ValueError:
        module.fail_json(
            msg="%s of claim %s was not read whole: the log of its pod lacks its begin; lower most." % (params["src"], params["claim"])
        )
    before = ""
    if os.path.exists(params["dest"]):
        with open(params["dest"], encoding="utf-8") as file:
            before = file.read()
    if before != text and not module.check_mode:
        with open(params["dest"], "w", encoding="utf-8") as file:
            file.write(text)
    module.exit_json(changed=before != text, size=len(text), left_out=max(0, size - params["most"]))


if __name__ == "__main__":
    main()
