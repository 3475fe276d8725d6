# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the module of this name for one part of the file after the other, and writes them on the controller."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

from ansible.plugins.action import ActionBase

PART = 4 << 20


class ActionModule(ActionBase):
    """Fetches a file of a job."""

    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        """Return what the module said of the file, and how much of it was left out."""
        result = super().run(tmp, task_vars)
        asked = dict(self._task.args)
        most, dest = int(asked.get("most") or 64 << 20), Path(asked["dest"])
        first = self._part(asked, task_vars, 0, PART)
        if first.get("failed") or not first.get("exists"):  # then it has no content
            return {**result, **first}
        dest.parent.mkdir(parents=True, exist_ok=True)
        temporary = dest.with_name(f".{dest.name}.part")
        mode = int(first["mode"], 8) & 0o666
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
                os.fchmod(handle.fileno(), mode | 0o600)
                for offset, length, cut in parts(first["size"], most):
                    found = self._part(asked, task_vars, offset, length) if offset else first
                    if found.get("failed") or not found.get("exists"):
                        return {**result, "failed": True, "msg": found.get("msg") or f"{asked['src']} went away while it was read."}
                    handle.write(cut(base64.b64decode(found["content"])[:length]))
            temporary.replace(dest)
        finally:
            temporary.unlink(missing_ok=True)
        return {**result, **{key: first[key] for key in ("changed", "exists", "size", "mode")}, "left_out": max(0, first["size"] - most)}

    def _part(self, asked, task_vars, offset, length):
        found = self._execute_module(
            module_name="muster.fleet.job_file", module_args={**asked, "offset": offset, "length": length}, task_vars=task_vars
        )
        found.pop("invocation", None)
        return found


def parts(size: int, most: int) -> Iterator[tuple]:
    """(offset, length, function of its content) of each part to copy of a file of `size` bytes, at most `most` in all."""

    def whole(content: bytes) -> bytes:
        return content

    spans = [(0, size)] if size <= most else [(0, most // 4), (size - (most - most // 4), size)]
    for begin, end in spans:
        for offset in range(begin, end, PART):
            length = min(PART, end - offset)
            cut = whole
            if end < size and offset + length == end:
                cut = to_line_end
            elif begin and offset == begin:
                cut = from_line_begin
            yield offset, length, cut


def to_line_end(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def from_line_begin(content: bytes) -> bytes:
    return content[content.find(b"\n") + 1 :]
