# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer estimate`: memory, speed, hours and money of a training run before anyone rents a machine. Without torch."""
