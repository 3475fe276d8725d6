# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Debian's own Nsight Systems profiles a program on a node without a GPU."""

from __future__ import annotations

import json

COUNT = "import sqlite3; print(sqlite3.connect('/run/profile.sqlite').execute('select count(*) from OSRT_API').fetchone()[0])"


def test_the_version_is_that_of_the_stack(host):
    assert "NVIDIA Nsight Systems version 2023.4.4.54" in host.check_output("nsys --version")
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["nsight"]
    assert entry["packages"] == {"nsight-systems": "2023.4.4.54~12.4.1-2"}


def test_a_profile_has_the_calls_of_the_program(host):
    host.check_output(
        "nsys profile --sample=none --cpuctxsw=none --trace=osrt --force-overwrite=true --export=sqlite --output=/run/profile "
        "python3 -c 'import time; time.sleep(0.2)'"
    )
    assert int(host.check_output(f'python3 -c "{COUNT}"')) > 0
