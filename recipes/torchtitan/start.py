# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Starts torchtitan's own main(). With `--config llama3_cpu`, cpu.py beside it stands for the GPU that torchtitan needs."""

import sys
from pathlib import Path


def add_float8():
    """The configuration llama3_8b_float8: llama3_8b with linear layers in FP8, compiled. torchtitan 0.3.0 has that only for other sizes."""
    from torchtitan.components.quantization import Float8LinearConverter
    from torchtitan.config import CompileConfig
    from torchtitan.models.llama3 import config_registry, model_registry

    def made():
        config = config_registry.llama3_8b()
        config.compile = CompileConfig(enable=True, components=["model"])
        converter = Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=True)
        config.model_spec = model_registry("8B", converters=[converter])
        return config

    config_registry.llama3_8b_float8 = made


if __name__ == "__main__":
    if "llama3_cpu" in sys.argv:
        import cpu

        cpu.stand_in(Path(__file__).parent / "assets")
    if "llama3_8b_float8" in sys.argv:
        add_float8()
    from torchtitan.train import main

    main()
