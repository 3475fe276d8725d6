# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The EC2 inventory costs little more than boto3 and much less than aws_ec2, at the small sizes of tests/bench/inventory.py."""

from __future__ import annotations

import sys
from pathlib import Path

import amazon_aws
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.inventory import measure


@pytest.mark.parametrize("size", ["1000", "100x32"])
def test_it_costs_little_more_than_the_pages(size: str) -> None:
    found = measure(size, ("fleet", "all variables, --graph"), runs=2)
    assert found["fleet"] <= 1.5 * found["program"], found
    assert found["all variables, --graph"] <= 1.5 * found["program"], found
    assert found["fleet MiB"] <= 2 * found["program MiB"], found


def test_it_costs_a_fraction_of_aws_ec2() -> None:
    found = measure("1000", ("fleet", "aws_ec2"), amazon_aws.collections())
    # The import of boto3 is half of it at this size; with 5,000 instances the bound is 0.12.
    assert found["fleet"] <= 0.2 * found["aws_ec2"], found
