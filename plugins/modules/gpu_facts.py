#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: The GPUs of a host, and how they differ from its instance type
version_added: 0.1.0
description:
  - Reads the PCI bus, C(nvidia-smi -q -x) and C(nvidia-smi nvlink -s). Without a driver it reads only the bus.
  - A host without a GPU is not an error; RV(ignore:reason) names it.
author:
  - The Muster developers (@muster-fleet)
options:
  instance_type:
    description: The host's instance type in the catalogue.
    type: str
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: verify | Read the GPUs
  muster.fleet.gpu_facts:
    instance_type: p5.48xlarge
  register: gpus
"""

RETURN = r"""
ansible_facts:
  description: The same dictionary as RV(gpu), as the fact C(muster_gpu).
  returned: success
  type: dict
gpu:
  description:
    - C(count), C(on_bus), C(bus_devices), C(driver), C(cuda), C(models).
    - For each of C(gpus) its name, model, memory, NVLinks that are up, MIG, ECC, row remapping and the state of the NVLink fabric.
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

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, gpu
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal


def main():
    module = AnsibleModule(argument_spec={"instance_type": {"type": "str"}}, supports_check_mode=True)
    try:
        have = catalogue.instance_type(module.params["instance_type"]) if module.params["instance_type"] else None
        bus = gpu.on_the_bus()
        smi = nvlink = None
        said = ""
        tool = module.get_bin_path("nvidia-smi")
        if tool:
            rc, out, said = module.run_command([tool, "-q", "-x"])
            smi = gpu.parse_smi(out) if rc == 0 else None
        if smi and smi["gpus"]:
            rc, out, err = module.run_command([tool, "nvlink", "-s"])
            nvlink = gpu.parse_nvlink(out) if rc == 0 else None
    except (catalogue.CatalogueError, gpu.GpuError) as error:
        module.fail_json(msg=str(error))
    found = {**gpu.facts(bus, smi, nvlink), "rehearsed": rehearsal.of_facts(rehearsal.node(), said)}
    reason = ""
    if not bus and not found["count"]:
        reason = "This host has no GPU of NVIDIA on its PCI bus."
    elif not smi:
        reason = "nvidia-smi failed on this host." if tool else "This host has no nvidia-smi, so only the PCI bus was read."
    module.exit_json(changed=False, ansible_facts={"muster_gpu": found}, gpu=found, faults=gpu.faults(found, have), reason=reason)


if __name__ == "__main__":
    main()
