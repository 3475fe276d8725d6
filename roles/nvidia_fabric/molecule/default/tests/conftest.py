# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Each file tests one node, its NODE."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_its_node(host, request):
    if host.backend.host != request.module.NODE:
        pytest.skip(f"a test of {request.module.NODE}")
