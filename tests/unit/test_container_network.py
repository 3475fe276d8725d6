# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Addresses of node containers, and networks that no other uses."""

from __future__ import annotations

import ipaddress
import json

import pytest
from node_container_fakes import fixture, node, record

from ansible_collections.muster.fleet.plugins.module_utils.containers import network
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError


def test_addresses_stay_and_fill_gaps() -> None:
    found = network.assign_addresses([node("a"), node("c"), node("d")], record("a", "b", "c"), "10.213.5.0/24")
    assert found == {"a": "10.213.5.2", "c": "10.213.5.4", "d": "10.213.5.5"}
    assert network.assign_addresses([node("a"), node("e")], record("a"), "10.213.5.0/24")["e"] == "10.213.5.3"


def test_addresses_of_another_subnet_are_given_anew() -> None:
    assert network.assign_addresses([node("a")], record("a"), "10.213.9.0/24") == {"a": "10.213.9.2"}


def test_routes_of_the_host() -> None:
    assert [str(route) for route in network.host_routes(fixture("proc_net_route.txt"))] == [
        "10.88.0.0/16",
        "10.199.7.0/24",
        "10.213.121.0/24",
        "192.0.2.0/24",
    ]


@pytest.mark.parametrize(
    ("file", "subnets"),
    [
        ("podman_network_inspect.json", ["10.88.0.0/16", "10.213.121.0/24"]),
        ("docker_network_inspect.json", ["10.213.160.0/24", "172.17.0.0/16"]),
    ],
)
def test_subnets_of_both_engines(file: str, subnets: list[str]) -> None:
    assert [str(subnet) for subnet in network.subnets_in(json.loads(fixture(file)))] == subnets


def test_subnet_is_free_and_steady() -> None:
    first = network.choose_subnet("demo", [])
    assert network.choose_subnet("demo", [ipaddress.IPv4Network("10.88.0.0/16")]) == first
    second = network.choose_subnet("demo", [ipaddress.IPv4Network(first)])
    assert not ipaddress.IPv4Network(first).overlaps(ipaddress.IPv4Network(second))
    with pytest.raises(NodeContainerError, match="No free network for fleet demo"):
        network.choose_subnet("demo", [ipaddress.IPv4Network("10.0.0.0/8")])
