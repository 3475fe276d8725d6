# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Muster's PyTorch trainer and its collective tests: what a fleet runs to prove that it can train."""

import os

__version__ = "0.1.0"

# When a rank is lost, torch's C++ prints warnings with stacks on every other rank, which bury our sentence. torch reads this when it loads.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Segments that grow leave fewer holes in a GPU's memory. Another value of the user's, under its old name too, counts instead.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
