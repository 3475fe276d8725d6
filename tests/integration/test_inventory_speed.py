# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The EC2 inventory stays near what boto3 itself costs: the small sizes of tests/bench/inventory.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.inventory import measure


@pytest.mark.parametrize("size", ["1000", "100x32"])
def test_it_costs_little_more_than_the_pages(size: str) -> None:
    found = measure(size, ("fleet",))
    # Importing boto3 and making its client, which the pages' seconds are without, is most of it at these sizes.
    assert found["fleet"] <= 1.5 * found["pages"] + 1.2, found
