# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Two lessons: data parallelism and model parallelism."""
