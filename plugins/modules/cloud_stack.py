#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: cloud_stack
short_description: Make, change or remove the stacks of a part of a cluster
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Brings the stacks of CloudFormation that a part of a cluster has into a state, and waits for it. The templates follow from the cluster
    document and the catalogue.
  - A stack that is being changed is waited for first, so that a run that was killed goes on.
  - A stack that another cluster or somebody else made is refused, and so is the removal of one whose exports others import, or whose queue
    of Batch has jobs that are not over. Credentials of another account than the document names are refused, too.
  - The key by which nodes of a Batch job reach each other is made and stored when its secret has none. It is in no output.
extends_documentation_fragment:
  - muster.fleet.aws
options:
  cluster:
    description: The document as M(muster.fleet.cluster_document) returned it.
    type: dict
    required: true
  part:
    description: The part.
    type: str
    choices: [vpc, s3, fsx, batch, ec2]
    required: true
  state:
    description: Whether the stacks are there. With V(absent) data stays, which RV(kept) names, unless O(delete_data) is given.
    type: str
    choices: [present, absent]
    default: present
  delete_data:
    description: The name of the cluster, with which its file systems or all objects of its bucket are deleted too.
    type: str
    default: ""
  wait_timeout:
    description: Seconds to wait for each stack.
    type: int
    default: 3600
attributes:
  check_mode:
    description: Shows what would change by a change set, which is then deleted.
    support: full
  diff_mode:
    description: Shows templates and parameters.
    support: full
"""

EXAMPLES = r"""
- name: Read a cluster document
  muster.fleet.cluster_document:
    path: mine.yml
  register: mine

- name: Make its network
  muster.fleet.cloud_stack:
    cluster: "{{ mine.document }}"
    part: vpc
"""

RETURN = r"""
stacks:
  description: The stacks, each with its name, its outputs, and the changes of its resources.
  type: list
  elements: dict
  returned: with O(state=present)
kept:
  description: Type and id of what stays with its data.
  type: list
  elements: dict
  returned: with O(state=absent)
stays:
  description: Why the network stays and what it costs, as a sentence; empty where it does not stay.
  type: str
  returned: with O(state=absent)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.aws import plan, preflight, survey
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError, load
from ansible_collections.muster.fleet.plugins.module_utils.aws.stacks import Stack, store_key


def present(module, region, cluster, wanted):
    done = [Stack(region, cluster, each, module.params["wait_timeout"]) for each in wanted]
    told, before, after = [], {}, {}
    changed = False
    for stack in done:
        result = stack.present(module.check_mode)
        before[stack.name], after[stack.name] = result["before"], result["after"]
        secret = result["outputs"].get("SSHKeySecretArn")
        result["changed"] |= bool(secret) and store_key(region, secret, module.check_mode)
        changed |= result["changed"]
        told.append({"name": stack.name, "outputs": result["outputs"], "changes": result["changes"]})
    module.exit_json(changed=changed, stacks=told, diff={"before": before, "after": after})


def absent(module, region, cluster, wanted):
    part, delete = module.params["part"], module.params["delete_data"]
    if delete and delete != cluster["name"]:
        raise ClusterError("delete_data is %s, and the cluster is called %s; nothing was removed." % (delete, cluster["name"]))
    stays = survey.network_in_use(region, cluster) if part == "vpc" else ""
    if stays:
        module.exit_json(changed=False, kept=[], stays=stays)
    if part == "batch":
        survey.refuse_jobs(region, wanted)
    kept = []
    changed = part == "ec2" and bool(survey.end_slurm_nodes(region, cluster, module.check_mode))
    for each in reversed(wanted):
        result = Stack(region, cluster, each, module.params["wait_timeout"]).absent(module.check_mode, part in plan.DATA and not delete)
        changed |= result["changed"]
        kept += result["kept"]
    if part == "ec2":
        # A controller may have started some more before it ended itself.
        changed |= bool(survey.end_slurm_nodes(region, cluster, module.check_mode))
    if delete and not module.check_mode:
        gone = survey.delete_data(region, cluster, part, module.params["wait_timeout"])
        changed |= bool(gone)
        kept = [each for each in kept if each["id"] not in gone]
    module.exit_json(changed=changed, kept=kept, stays="")


def main():
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "cluster": {"type": "dict", "required": True},
            "part": {"type": "str", "choices": list(plan.MADE_HERE), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "delete_data": {"type": "str", "default": ""},
            "wait_timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        cluster = load(module.params["cluster"])
        region = Region(Accounts({**module.params, "region": module.params["region"] or cluster["region"]}, who="cloud_stack"))
        preflight.refuse_account(region, cluster)
        wanted = plan.stacks(cluster, module.params["part"])
        nodes = module.params["part"] == "ec2" and module.params["state"] == "present"
        fault = preflight.collection_fault(region, cluster) if nodes and not module.check_mode else ""
        if fault:
            raise ClusterError(fault)
        if cluster["image"] and nodes:
            root = region.image(cluster["image"]).get("RootDeviceName")
            for each in wanted:
                each["parameters"]["RootDevice"] = root or "/dev/xvda"
        {"present": present, "absent": absent}[module.params["state"]](module, region, cluster, wanted)
    except (AwsError, ClusterError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
