# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The one fleet of the end-to-end tests: brought up by site.yml, taken down when the tests are over."""

from __future__ import annotations

import pytest
from e2e_fleet import NAME, Fleet, brought_up


@pytest.fixture(scope="session")
def fleet(artifacts, request: pytest.FixtureRequest) -> Fleet:
    """The test fleet, up and trained on."""
    return brought_up(artifacts, request, NAME)
