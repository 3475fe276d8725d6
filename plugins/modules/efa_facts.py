#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: efa_facts
short_description: The EFA devices of a host, and how they differ from its instance type
version_added: 0.1.0
description:
  - Reads C(/sys/class/infiniband), C(fi_info -p efa), the version of the kernel's module and the record of the EFA installer.
  - The instance's metadata say on which network card a device is. They are read only when there is an EFA device.
  - A host without EFA is not an error; RV(ignore:reason) names it.
author:
  - The Muster developers (@muster-fleet)
options:
  instance_type:
    description: The host's instance type in the catalogue.
    type: str
  metadata_url:
    description: The address of the instance's metadata; empty to skip them.
    type: str
    default: http://169.254.169.254
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: verify | Read the EFA devices
  muster.fleet.efa_facts:
    instance_type: p5.48xlarge
  register: efa
"""

RETURN = r"""
ansible_facts:
  description: The same dictionary as RV(efa), as the fact C(muster_efa).
  returned: success
  type: dict
efa:
  description:
    - C(count), C(provider), C(fabrics), C(domains), C(versions) of driver, installer and libfabric.
    - For each of C(devices) its name, PCI device and address, port state, MAC address, peer-to-peer provider and network card.
    - C(rehearsed) names the stand-ins that were read instead of hardware; it is empty on a real host.
  returned: success
  type: dict
faults:
  description: Sentences with what was expected and found; none when the host fits its type.
  returned: success
  type: list
  elements: str
reason:
  description: Why there is nothing to read, or empty.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, efa
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal

PATHS = ["/opt/amazon/efa/bin"]


def network_cards(url, macs):
    """{MAC address: network card} from the instance's metadata; addresses that these lack are left out."""
    cards = {}
    try:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = open_url(url + "/latest/api/token", method="PUT", headers=headers, timeout=2, use_proxy=False).read().decode()
    except (OSError, ValueError):
        return cards
    for mac in macs:
        path = "%s/latest/meta-data/network/interfaces/macs/%s/network-card" % (url, mac)
        try:
            text = open_url(path, headers={"X-aws-ec2-metadata-token": token}, timeout=2, use_proxy=False).read().decode()
            cards[mac] = int(text)
        except (OSError, ValueError):
            continue
    return cards


def main():
    module = AnsibleModule(
        argument_spec={"instance_type": {"type": "str"}, "metadata_url": {"type": "str", "default": "http://169.254.169.254"}},
        supports_check_mode=True,
    )
    try:
        have = catalogue.instance_type(module.params["instance_type"]) if module.params["instance_type"] else None
    except catalogue.CatalogueError as error:
        module.fail_json(msg=str(error))
    devices = efa.devices()
    macs = [device["mac"] for device in devices if device["mac"]]
    if macs and module.params["metadata_url"]:
        devices = efa.with_cards(devices, network_cards(module.params["metadata_url"].rstrip("/"), macs))
    infos, said, warned = None, "", ""
    tool = module.get_bin_path("fi_info", opt_dirs=PATHS)
    if tool:
        rc, out, warned = module.run_command([tool, "-p", "efa"])
        # It fails with "No data available" when there is no device.
        infos = efa.parse_fi_info(out) if rc == 0 else []
        rc, said, err = module.run_command([tool, "--version"])
    found = efa.facts(devices, infos, efa.versions(fi_info=said))
    found["rehearsed"] = rehearsal.of_facts(rehearsal.node(), warned)
    reason = "" if devices else "This host has no EFA device in /sys/class/infiniband."
    if devices and not tool:
        reason = "This host has no fi_info, so libfabric was not asked."
    module.exit_json(changed=False, ansible_facts={"muster_efa": found}, efa=found, faults=efa.faults(found, have), reason=reason)


if __name__ == "__main__":
    main()
