# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Muster's PyTorch trainer and its collective tests: what a fleet runs to prove that it can train."""

import os

__version__ = "0.1.0"

# A lost rank makes torch's C++ print warnings with stacks on every other rank, around the one sentence that says it. Read when torch loads.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
