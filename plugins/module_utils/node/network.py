# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of hosts in which neighbours in the network stand beside each other."""

from __future__ import annotations

import os.path
from collections import Counter


def _paths(hosts, layers, domains):
    """{host: what it shares with its neighbours, from the top layer down}; empty for a host of which nothing is known.

    An NVLink domain stands below the last network node that all its hosts share, so that no network node divides it.
    """
    shared: dict = {}
    for host in hosts:
        mine, domain = list(layers.get(host) or ()), domains.get(host)
        if mine and domain:
            shared[domain] = os.path.commonprefix([shared.get(domain, mine), mine])
    out = {}
    for host in hosts:
        mine, domain = list(layers.get(host) or ()), domains.get(host)
        above = shared.get(domain, []) if domain else mine
        path = [("", node) for node in above] + ([("nvlink", domain)] if domain else [])
        out[host] = path + [("", node) for node in mine[len(above) :]]
    return out


def in_order(hosts, layers, domains=None):
    """Each host once: those of an NVLink domain side by side, then those of a network node, from the bottom layer up.

    layers: {host: network nodes above it, from the top layer down}; domains: {host: NVLink domain}. The network node with the most hosts
    comes first, so that a job on some of the hosts gets neighbours. Hosts of which nothing is known come last. Where nothing else decides,
    the order of `hosts` does.
    """
    hosts = list(dict.fromkeys(hosts))
    paths = _paths(hosts, layers, domains or {})
    sizes = Counter(tuple(path[:length]) for path in paths.values() for length in range(1, len(path) + 1))

    def key(host):
        path = paths[host]
        return (not path, [(-sizes[tuple(path[:length])], path[length - 1]) for length in range(1, len(path) + 1)])

    return sorted(hosts, key=key)
