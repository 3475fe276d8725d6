#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fills a folder with every file that a stack names, laid out as HOST/PATH, and checks each file. A file that exists is only checked.

Package repositories are too large for this: their keys are fetched, and the addresses are printed for the distribution's own tools.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils import paths
from ansible_collections.muster.fleet.plugins.module_utils.stack.document import StackError, downloads, mirrored
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import (
    DownloadError,
    check_key,
    check_signature,
    check_sum,
    fetch,
    fingerprint_of,
)


def file_of(url: str, to: Path) -> Path:
    return Path(mirrored(url, str(to)).removeprefix("file://"))


def check(download: dict, to: Path) -> None:
    """Raise DownloadError unless the files of one download are what the stack says."""
    signature, url = download.get("signature"), download["url"]
    if signature:
        key = file_of(signature["key"], to)
        fingerprint = fingerprint_of(signature, key, paths.lock_file(os.environ))
    if download["kind"] == "repository":
        check_key(key, fingerprint, url)
    elif signature:
        check_signature(file_of(url, to), file_of(signature["url"], to), key, fingerprint, url)
    else:
        check_sum(file_of(url, to), download["sha256"], url)


def fill(download: dict, to: Path, source: str, wait: float) -> str:
    """Fetch or check one download and return a line about it. Raises DownloadError."""
    signature, url = download.get("signature"), download["url"]
    needed = [signature["key"]] if signature else []
    if download["kind"] == "url":
        needed += [signature["url"]] if signature else []
        needed.append(url)
    missing = [each for each in needed if not file_of(each, to).exists()]
    for each in missing:
        fetch(each, file_of(each, to), source, wait)
    try:
        check(download, to)
    except DownloadError:
        # The next run fetches them anew: the maker may have renewed its key since.
        for each in needed:
            file_of(each, to).unlink(missing_ok=True)
        raise
    if download["kind"] == "repository":
        return "a repository; its key is here, mirror its packages by apt-mirror or reposync to the same path"
    return "fetched and good" if url in missing else "was there and is good"


def main(argv: list[str], wait: float = 1.0) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack", help="name of a stack, or a file that ends in .yml")
    parser.add_argument("to", type=lambda text: Path(text).resolve(), help="the folder")
    parser.add_argument("--from", dest="source", default="", help="another mirror, address or folder, to fetch from")
    parser.add_argument("--system", action="append", default=[], help="for this system alone; may be given several times")
    parser.add_argument("--arch", action="append", default=[], help="for this architecture alone; may be given several times")
    options = parser.parse_args(argv)
    wrong = 0
    try:
        wanted = downloads(stack_files.load(options.stack), options.system, options.arch)
    except StackError as error:
        print(error)
        return 1
    for download in wanted:
        try:
            said = fill(download, options.to, options.source, wait)
        except DownloadError as error:
            wrong += 1
            said = f"LEFT OUT: {error}"
        print(f"{download['component']}: {download['url']}\n  {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
