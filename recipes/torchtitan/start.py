# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Starts torchtitan's own main(). With `--config llama3_cpu`, cpu.py beside it stands for the GPU that torchtitan needs."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if "llama3_cpu" in sys.argv:
        import cpu

        cpu.stand_in(Path(__file__).parent / "assets")
    from torchtitan.train import main

    main()
