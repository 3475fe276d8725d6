#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fetches every file that a stack names, checks sums, signatures and fingerprints, and prints the lines to commit.

The exit code is 1 when something is not what the stack says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.stack.document import StackError, downloads
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import (
    DownloadError,
    check_key,
    check_signature,
    check_sum,
    fetch,
    fingerprint_of,
    sha256,
)


def look(download: dict, folder: Path, mirror: str, wait: float) -> str:
    """Fetch a download and return a line with its checksum or its signature. Raises DownloadError."""
    file, signature = folder / "file", download.get("signature")
    if signature:
        fetch(signature["key"], folder / "key", mirror, wait)
    if download["kind"] == "repository":
        fingerprint = fingerprint_of(signature, folder / "key", folder / "lock.json")
        check_key(folder / "key", fingerprint, download["url"])
        return f"the key is {fingerprint}" + (f"; only HTTPS vouches for it ({signature['https']})" if "https" in signature else "")
    fetch(download["url"], file, mirror, wait)
    if signature:
        fetch(signature["url"], folder / "signature", mirror, wait)
        fingerprint = fingerprint_of(signature, folder / "key", folder / "lock.json")
        check_signature(file, folder / "signature", folder / "key", fingerprint, download["url"])
        return f"signed by {fingerprint}, sha256: {sha256(file)}"
    found = sha256(file)
    check_sum(file, download["sha256"], download["url"])
    return f"sha256: {found} as committed"


def main(argv: list[str], wait: float = 1.0) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack", help="name of a stack, or a file that ends in .yml")
    parser.add_argument("--mirror", default="", help="address or folder to fetch from instead")
    parser.add_argument("--only", action="append", metavar="COMPONENT", help="this component alone; may be given several times")
    options = parser.parse_args(argv)
    wrong = 0
    try:
        wanted = downloads(stack_files.load(options.stack))
    except StackError as error:
        print(error)
        return 1
    for download in wanted:
        if options.only and download["component"] not in options.only:
            continue
        # One file at a time: together they may be larger than the disk.
        with tempfile.TemporaryDirectory(prefix="muster-sums-") as folder:
            try:
                said = look(download, Path(folder), options.mirror, wait)
            except DownloadError as error:
                wrong += 1
                said = f"WRONG: {error}"
        print(f"{download['component']}: {download['url']}\n  {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
