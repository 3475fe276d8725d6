# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The one fleet of the end-to-end tests: brought up by site.yml, taken down when the tests are over."""

from __future__ import annotations

import pytest
from e2e_fleet import NAME, Fleet


@pytest.fixture(scope="session")
def fleet(artifacts, request: pytest.FixtureRequest) -> Fleet:
    """The test fleet, up and trained on."""
    made = Fleet(artifacts.folder(NAME))
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    request.addfinalizer(made.end)
    made.first = made.run("site.yml")
    if made.first.returncode != 0:
        pytest.fail(f"the fleet did not come up:\n{made.first.stdout[-5000:]}", pytrace=False)
    made.first_run = made.latest
    return made
