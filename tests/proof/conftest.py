# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fleet of a proof. It has the proof's name, so that two proofs can run side by side."""

from __future__ import annotations

import pytest
from e2e_fleet import Fleet, brought_up


@pytest.fixture(scope="session")
def fleet(artifacts, request: pytest.FixtureRequest) -> Fleet:
    """The fleet of the end-to-end tests under the name of the proof, up and trained on."""
    return brought_up(artifacts, request, request.session.items[0].path.stem.replace("_", "-"))
