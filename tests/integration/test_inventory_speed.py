# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The EC2 inventory stays near what boto3 itself costs, and far from aws_ec2: the small sizes of tests/bench/inventory.py."""

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
    # Importing boto3 is half of it at this size; of 5,000 it must be 0.12 at most.
    assert found["fleet"] <= 0.2 * found["aws_ec2"], found
