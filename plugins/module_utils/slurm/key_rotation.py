# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The original of a key while it is replaced: KEY, KEY.next until the nodes get it, KEY.previous until it is proven.

KEY is there at every moment, so that a converge in between finds one of the two and never makes a third.
"""

from __future__ import annotations

import os


class KeyRotationError(Exception):
    """A rotation that cannot go on; the text is one sentence for the user."""


def stage(present):
    """The stage of a rotation (none, begun or switched), from the suffixes of the files that exist: "", ".next", ".previous"."""
    if "" not in present:
        raise KeyRotationError("There is no key to rotate; run provision.yml, which creates the first one.")
    if ".next" in present:
        return "begun"
    return "switched" if ".previous" in present else "none"


def steps(state, found, content):
    """[(action, suffix, suffix or content)] from the stage `found` to `state`: begun, switched or finished.

    A rotation that has switched is not begun again: it is proven and finished first, or nodes would be left with a key that nobody has.
    """
    if state == "begun":
        return [("write", ".next", content)] if found == "none" else []
    if state == "switched":
        if found == "none":
            raise KeyRotationError("No rotation of the key was begun.")
        return [("copy", "", ".previous"), ("move", ".next", "")] if found == "begun" else []
    if found == "begun":
        raise KeyRotationError("The new key was created and never brought to the nodes; run the rotation again.")
    return [("remove", ".previous", "")] if found == "switched" else []


def present(path):
    return {suffix for suffix in ("", ".next", ".previous") if os.path.exists(path + suffix)}


def apply(path, todo):
    """Do the steps, each of them whole or not at all."""
    for action, suffix, other in todo:
        if action == "write":
            _write(path + suffix, other.encode())
        elif action == "copy":
            with open(path + suffix, "rb") as handle:
                _write(path + other, handle.read())
        elif action == "move":
            os.replace(path + suffix, path + other)
        else:
            os.unlink(path + suffix)


def _write(path, content):
    with open(os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(path + ".part", path)
