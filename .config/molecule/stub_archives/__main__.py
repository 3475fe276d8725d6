# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fills a mirror folder with stub archives: small stand-ins for what only vendors' hosts have, in the vendors' layout.

    python .config/molecule/stub_archives FOLDER [STACK]

A stub keeps the names, options and exit codes of the vendor's archive, and its programs only answer. All stubs are signed by a key
made here, so FOLDER/stub.yml is a stack that extends STACK (debian-13) and trusts that key. A scenario uses it with
muster_stack_name=FOLDER/stub.yml and muster_mirror=FOLDER. A folder that is complete stays as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from archives import LABEL, Archives
from components import ALL


def make(folder: Path, extends: str = "debian-13") -> Path:
    """Fill the folder unless it is complete; return the path of its stack."""
    stack = folder / "stub.yml"
    if not stack.exists():
        archives = Archives(folder, extends)
        try:
            for component in ALL:
                component(archives)
        finally:
            archives.close()
        about = LABEL.format("the vendors' archives")
        text = json.dumps({"schema": "muster.stack/1", "name": "stub", "extends": extends, "about": about, **archives.stack}, indent=1)
        stack.write_text(f"# {about}. JSON is YAML.\n{text}\n")
    return stack


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: stub_archives FOLDER [STACK]")
    print(make(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
