# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Samples by their global number. The seed and the number alone decide what a sample is, so any number of ranks reads the same data in the
same order: data rank r of D reads the samples n = r mod D.
"""
