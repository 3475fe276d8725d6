# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model over all ranks: which part of it each rank has, and one step of it, in every layout."""
