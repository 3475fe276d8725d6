#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_document
short_description: Read and check a cluster document
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Reads a cluster document, V(muster.cluster/1), from a YAML or JSON file, refuses an invalid one, and says which parts it
    has. Asks AWS nothing. Nothing in the file is taken as a template.
options:
  path:
    description: The file.
    type: path
    required: true
  verb:
    description: What a user asks of the cluster.
    type: str
    default: status
requirements:
  - PyYAML
attributes:
  check_mode:
    support: full
    description: Reads only.
  diff_mode:
    support: none
    description: Changes nothing.
seealso:
  - module: muster.fleet.cloud_stack
"""

EXAMPLES = r"""
- name: Read a cluster document
  muster.fleet.cluster_document:
    path: mine.yml
    verb: up
  register: mine
"""

RETURN = r"""
document:
  description: The document with the defaults of all fields that the file does not have.
  type: dict
  returned: success
verb:
  description: The verb.
  type: str
  returned: success
state:
  description: The state to which the roles bring their parts; empty for verbs that change nothing.
  type: str
  returned: success
  sample: present
parts:
  description: >-
    The parts in the order in which they are made. Role C(aws_PART) makes each. Of a kind whose files are rendered only, these are the
    parts before the one with the nodes.
  type: list
  elements: str
  returned: success
  sample: [vpc, batch]
launches:
  description: Instance type and launch of each node group with accelerators, for M(muster.fleet.stack_rules).
  type: list
  elements: dict
  returned: success
rendered:
  description: File names and texts of what each part gives its service or its tool.
  type: dict
  returned: when O(verb=render)
"""

import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.muster.fleet.plugins.module_utils.aws import cluster, plan, render

try:
    import yaml
except ImportError:
    yaml = None


def main():
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "verb": {"type": "str", "default": "status"}},
        supports_check_mode=True,
    )
    if yaml is None:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    path, verb = os.path.abspath(module.params["path"]), module.params["verb"]
    try:
        state = plan.state_of(verb)
        with open(path, encoding="utf-8") as file:
            document = cluster.load(yaml.safe_load(file.read()))
        rendered = {"rendered": render.files(document)} if verb == "render" else {}
        parts = plan.before(document) if rendered and document["kind"] in plan.RENDERED else plan.parts(document)
    except OSError as error:
        module.fail_json(msg="Cluster document %s cannot be read (%s): name a file." % (path, error.strerror))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        module.fail_json(msg="Cluster document %s is not YAML: %s; mend it." % (path, " ".join(str(error).split())))
    except cluster.ClusterError as error:
        module.fail_json(msg="%s: %s" % (path, error))
    module.exit_json(changed=False, document=document, verb=verb, state=state, parts=parts, launches=plan.launches(document), **rendered)


if __name__ == "__main__":
    main()
