# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which components to install over the base of a container image: those of the base stay, and none is replaced by an older one."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key

# Components that the images of AWS and NVIDIA have.
BROUGHT = ("cuda", "gdrcopy", "efa", "nccl", "aws_ofi_nccl", "nccl_tests")
# The programs in the base are built for these: an older one would be slow or not be loaded, without an error.
NEVER_OLDER = ("nccl", "aws_ofi_nccl")


def comparable(component, version):
    """The version as a key. Only the first two numbers of CUDA count, because its parts have numbers of their own."""
    return version_key(version)[: 2 if component == "cuda" else None]


def plan(components, stack, found, base):
    """{install, kept, refused}: what to install, what the base has as component to version, and a sentence for each downgrade.

    found: what the base has, as the module stack_facts tells it. Without the installer of EFA in the stack there is none in the image.
    """
    install, kept, refused = [], {}, []
    for name in components:
        wanted, has = stack.get(name, {}).get("version", ""), found.get(name, {}).get("version", "")
        if name == "efa" and not wanted:
            continue
        if name not in BROUGHT or not has or not wanted:
            install.append(name)
        elif wanted == "*" or comparable(name, has) == comparable(name, wanted):
            kept[name] = has
        elif comparable(name, has) < comparable(name, wanted):
            install.append(name)
        elif name in NEVER_OLDER:
            said = "Base %s has %s %s, and stack %s would replace it by %s, which is older; take a stack with %s or newer, or leave %s out."
            refused.append(said % (base, name, has, stack["name"], wanted, has, name))
        else:
            kept[name] = has
    return {"install": install, "kept": kept, "refused": refused}
