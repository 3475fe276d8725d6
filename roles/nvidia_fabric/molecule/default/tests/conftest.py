# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Each file of tests is about one node, its NODE."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_its_node(host, request):
    if host.backend.host != request.module.NODE:
        pytest.skip(f"this is about {request.module.NODE}")
