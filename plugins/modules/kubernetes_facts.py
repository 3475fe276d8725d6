#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
---
module: kubernetes_facts
short_description: What a Kubernetes cluster has
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Returns nodes, devices and claims of a cluster, and what its operators and its names say, for the checks of role kubernetes.
  - Uses the context that O(context) names and no other.
attributes:
  check_mode:
    support: full
    description: Only reads, but for a pod that it starts and removes when O(probe_image) is given.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  kubeconfig:
    description: The kubeconfig. Without it, C(KUBECONFIG) or C(~/.kube/config).
    type: path
  context:
    description: The context of the kubeconfig.
    type: str
    required: true
  namespace:
    description: The namespace of the jobs.
    type: str
    default: default
  operators:
    description: Operators whose webhooks are given a wrong job as a dry run.
    type: list
    elements: str
    choices: [training-operator, jobset, trainer]
    default: []
  claims:
    description: Claims of the namespace to look at.
    type: list
    elements: str
    default: []
  probe_image:
    description: An image with C(getent), in which a pod looks up the API server's name. Without it no pod is started.
    type: str
    default: ""
requirements:
  - kubernetes
"""

EXAMPLES = r"""
- name: Look at the nodes
  muster.fleet.kubernetes_facts:
    context: my-cluster
"""

RETURN = r"""
version:
  description: The version of the API server.
  returned: success
  type: str
  sample: v1.34.2
nodes:
  description: The nodes, with their type, devices and sizes.
  returned: success
  type: list
  elements: dict
  sample: [{name: node1, type: p5.48xlarge, ready: true, gpu: 8, efa: 32}]
lacking:
  description: For V(gpu) and V(efa), which nodes have fewer devices than their type; empty text when none.
  returned: success
  type: dict
  sample: {gpu: "", efa: node1 has 0 of 32}
expected:
  description: For V(gpu) and V(efa), whether some node's type has such devices.
  returned: success
  type: dict
  sample: {gpu: true, efa: true}
claims:
  description: The phase of each claim, or C(WaitForFirstConsumer) when its storage class binds it for its first pod.
  returned: success
  type: dict
  sample: {fsx-claim: Bound}
webhooks:
  description: What each operator's webhook said of a wrong job.
  returned: success
  type: dict
  sample: {training-operator: refused}
dns:
  description: The address that a pod found for the API server's name, or why it found none; empty without O(probe_image).
  returned: success
  type: str
  sample: 10.0.0.1
etcd:
  description: What the API server says of its etcd.
  returned: success
  type: str
  sample: ok
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.kubernetes import facts
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, Objects, connection, said


def gather(objects, params):
    """The answer of the module."""
    listed = objects.get("/api/v1/nodes") or {}
    if "items" not in listed:
        raise ApiError("The API server gives no list of nodes; look at the server of context %s." % params["context"])
    found = facts.nodes(listed["items"] or [])
    space = params["namespace"]
    status, etcd = objects.ask("GET", "/readyz/etcd")
    return {
        "version": objects.get("/version")["gitVersion"],
        "nodes": found,
        "lacking": {device: facts.lacking(found, device) for device in facts.DEVICES},
        "expected": {device: facts.expects(found, device) for device in facts.DEVICES},
        "claims": {name: facts.claim(objects, space, name, 60) for name in params["claims"]},
        "webhooks": {name: facts.webhook(objects, name, space) for name in params["operators"]},
        "dns": facts.resolved(objects, space, params["probe_image"], "kubernetes.default.svc") if params["probe_image"] else "",
        "etcd": said(status, etcd),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path"},
            "context": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": "default"},
            "operators": {"type": "list", "elements": "str", "choices": list(facts.WRONG), "default": []},
            "claims": {"type": "list", "elements": "str", "default": []},
            "probe_image": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        objects = Objects(connection(params["kubeconfig"] or "", params["context"], "kubernetes_facts"), 30)
        module.exit_json(changed=False, **gather(objects, params))
    except ApiError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
