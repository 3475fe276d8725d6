# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The component table, for tests that would otherwise list the roles themselves."""

from __future__ import annotations

from pathlib import Path

import yaml

TABLE = yaml.safe_load((Path(__file__).parents[2] / "playbooks/vars/components.yml").read_text())["component_table"]
NAMES = [entry["name"] for entry in TABLE]
# The groups of one entry are a template. It names only groups that other entries name too.
GROUPS = {group for entry in TABLE if isinstance(entry.get("groups"), list) for group in entry["groups"]}
