# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Muster's PyTorch trainer and its collective tests: what a fleet runs to prove that it can train."""

__version__ = "0.1.0"
