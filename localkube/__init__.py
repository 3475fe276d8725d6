# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Kubernetes on one machine: the real programs of a cluster, in namespaces of their own."""


class LocalKubeError(Exception):
    """A cluster cannot be had; the text is one sentence with the remedy."""
