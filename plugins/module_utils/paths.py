# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folders of a fleet's state, and of the caches and the lock file that all fleets share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FLEET = "local"  # the fleet that is meant where muster_fleet names none
FLEET_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


def check_fleet_name(fleet: str) -> str:
    """Return the fleet's name, or raise ValueError: it becomes part of paths and of the names of containers and networks."""
    if not FLEET_NAME.fullmatch(fleet):
        raise ValueError(
            f"Fleet name {fleet!r} cannot be used: it must be 1 to 20 lower-case letters, digits or dashes and begin with a letter."
        )
    return fleet


def state_dir(fleet: str, env: Mapping[str, str]) -> Path:
    """The folder that holds one fleet's desired size, keys, secrets and shared folder."""
    return _base(env, "XDG_STATE_HOME", ".local/state") / "muster" / check_fleet_name(fleet)


def cache_dir(env: Mapping[str, str]) -> Path:
    """The folder of all fleets' caches: images, packages, archives."""
    return _base(env, "XDG_CACHE_HOME", ".cache") / "muster"


def lock_file(env: Mapping[str, str]) -> Path:
    """The site's lock file, which all fleets of this user share: keys that Muster pinned when it first fetched them."""
    return _base(env, "XDG_STATE_HOME", ".local/state") / "muster" / "lock.json"


def _base(env: Mapping[str, str], variable: str, default: str) -> Path:
    # The XDG base directory specification says to ignore a relative path in the variable.
    value = env.get(variable, "")
    return Path(value) if value.startswith("/") else Path(env.get("HOME") or Path.home()) / default
