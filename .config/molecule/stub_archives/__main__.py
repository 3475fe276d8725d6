# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fills a mirror folder with stub archives: small stand-ins for what only vendors' hosts have, in the vendors' layout.

    python .config/molecule/stub_archives FOLDER [STACK] [--rehearsal]

A stub keeps the names, options and exit codes of the vendor's archive, and its programs only answer. All stubs are signed by a key
made here, so FOLDER/stub.yml is a stack that extends STACK (debian-13) and trusts that key. A scenario uses it with
muster_stack_name=FOLDER/stub.yml and muster_mirror=FOLDER. A folder that is complete stays as it is.

With --rehearsal they are stand-ins for a fleet that rehearses an instance type (docs/rehearsal.md): each names itself as that, and daemons
run. The addresses of the stack are then files in FOLDER, and for repositories in the same folder as the nodes have it, below NODE_FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from archives import LABEL, REHEARSES, Archives
from components import ALL, REHEARSED

NODE_FOLDER = "/var/cache/muster"  # where nodes of the local fleet have the folder that holds FOLDER


def make(folder: Path, extends: str = "debian-13") -> Path:
    """Fill the folder unless it is complete; return the path of its stack."""
    stack = folder / "stub.yml"
    if not stack.exists():
        archives = Archives(folder, extends)
        try:
            for component in REHEARSED if REHEARSES else ALL:
                component(archives)
        finally:
            archives.close()
        about = LABEL.format("the vendors' archives")
        name = f"{extends}-rehearsal" if REHEARSES else "stub"
        entries = placed(archives.stack, folder) if REHEARSES else archives.stack
        text = json.dumps({"schema": "muster.stack/1", "name": name, "extends": extends, "about": about, **entries}, indent=1)
        part = stack.with_suffix(".part")
        part.write_text(f"# {about}. JSON is YAML.\n{text}\n")
        part.rename(stack)
    return stack


def placed(entries: dict[str, dict], folder: Path) -> dict[str, dict]:
    """The stack's entries with the addresses of the folder: its own for files, and that on the nodes for repositories."""

    def at(url: str, place: Path) -> str:
        return f"file://{place}/{url.split('://', 1)[1]}"

    def source(given: dict) -> dict:
        found = dict(given)
        if "url" in found:
            found["url"] = at(found["url"], folder)
        if "parts" in found:
            found["parts"] = [{**part, "url": at(part["url"], folder)} for part in found["parts"]]
        if "repository" in found:
            found["repository"] = at(found["repository"], Path(NODE_FOLDER) / folder.name)
        if "signature" in found:
            found["signature"] = {**found["signature"], "key": at(found["signature"]["key"], folder)}
        return found

    return {name: {**entry, "sources": [source(each) for each in entry["sources"]]} for name, entry in entries.items()}


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--rehearsal"]
    if len(words) not in (1, 2):
        sys.exit("usage: stub_archives FOLDER [STACK] [--rehearsal]")
    print(make(Path(words[0]).resolve(), *words[1:]))
