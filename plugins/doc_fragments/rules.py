# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that ask the stack rules."""

from __future__ import annotations


class ModuleDocFragment:
    """What a rule is asked about beside a stack and an instance type."""

    DOCUMENTATION = r"""
options:
  scopes:
    description: Which rules are asked. With an empty list only the stacks themselves are checked.
    type: list
    elements: str
    choices: [stack, launch, env]
    default: [stack]
  launch:
    description: >-
      How instances are requested: C(market), C(platform), C(managed), C(availability_zones), C(subnets), C(placement_group), C(public_ip),
      C(interfaces) (each with C(card), C(device) and C(type)), C(security_group) (C(from_self) and C(to_self)), C(ami) (C(boot_mode),
      C(arch) and C(system)) and C(threads_per_core).
    type: dict
  env:
    description: Environment of a job.
    type: dict
  nodes:
    description: Number of nodes of the job; 0 when it is not known.
    type: int
    default: 0
"""
