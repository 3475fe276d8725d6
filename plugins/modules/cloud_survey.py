#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: cloud_survey
short_description: Say what an account says of a cluster
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Looks before a cluster is made (V(preflight)), while it is there (V(status), V(cost)) and when it is gone (V(left)). Changes nothing.
  - Fails with all sentences of V(preflight) at once. A check that the account does not allow is V(not_run), with the reason.
extends_documentation_fragment:
  - muster.fleet.aws
options:
  cluster:
    description: The document as M(muster.fleet.cluster_document) returned it.
    type: dict
    required: true
  what:
    description: What to say.
    type: str
    choices: [preflight, status, cost, left]
    required: true
  prices:
    description: >-
      Dollars an hour of an instance type, of V(nat-gateway), and of a GiB of V(fsx-lustre-gib) and V(fsx-openzfs-gib).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: Read a cluster document
  muster.fleet.cluster_document:
    path: mine.yml
  register: mine

- name: Say what it costs
  muster.fleet.cloud_survey:
    cluster: "{{ mine.document }}"
    what: cost
    prices:
      p5.48xlarge: 55.04
"""

RETURN = r"""
checks:
  description: The checks of V(preflight), each with its status and what it found.
  type: list
  elements: dict
  returned: with O(what=preflight)
not_run:
  description: Sentences of checks that could not run.
  type: list
  elements: str
  returned: with O(what=preflight)
stacks:
  description: Part, name, status, reason, outputs and number of resources of each stack.
  type: list
  elements: dict
  returned: with O(what=status)
table:
  description: What O(what) asks for as lines for people.
  type: list
  elements: str
  returned: success
bill:
  description: What is up, with dollars an hour where O(prices) knows them.
  type: dict
  returned: with O(what=cost)
left:
  description: What exists and costs money.
  type: list
  elements: dict
  returned: with O(what=left)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.aws import preflight, survey
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError, load


def table(rows):
    """Lines with aligned columns."""
    rows = [[str(each) for each in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(each.ljust(width) for each, width in zip(row, widths)).rstrip() for row in rows]


def main():
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "cluster": {"type": "dict", "required": True},
            "what": {"type": "str", "choices": ["preflight", "status", "cost", "left"], "required": True},
            "prices": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    what = module.params["what"]
    try:
        cluster = load(module.params["cluster"])
        region = Region(Accounts({**module.params, "region": module.params["region"] or cluster["region"]}, who="cloud_survey"))
        if what != "preflight":
            preflight.refuse_account(region, cluster)
        if what == "preflight":
            checks = preflight.preflight(region, cluster)
            faults = [each["said"] for each in checks if each["status"] == "failed"]
            not_run = [each["said"] for each in checks if each["status"] == "not_run"]
            lines = table([[each["status"], each["check"], each["said"]] for each in checks])
            if faults:
                module.fail_json(msg=" ".join(faults), checks=checks, not_run=not_run, table=lines)
            result = {"checks": checks, "not_run": not_run, "table": lines}
        elif what == "status":
            rows = survey.status(region, cluster)
            lines = table([[each["part"], each["stack"], each["status"], each["resources"], each["reason"]] for each in rows])
            result = {"stacks": rows, "table": lines}
        elif what == "cost":
            bill = survey.cost(region, cluster, module.params["prices"])
            lines = [
                [each["count"], each["what"], "no price" if each["hourly"] is None else "$%.2f/h" % each["hourly"]]
                for each in bill["lines"]
            ]
            result = {"bill": bill, "table": [*table(lines), "together $%.2f/h" % bill["hourly"]]}
        else:
            left = survey.left(region, cluster)
            result = {"left": left, "table": table([[each["what"], each["id"]] for each in left])}
    except (AwsError, ClusterError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
