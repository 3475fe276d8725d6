# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints: `step-N` of torch.distributed.checkpoint with a manifest (muster.checkpoint/1), in a folder or on S3.

The manifest lists every file with its size. A checkpoint without it, or with a file that is missing or has another size, is incomplete, and
no run ever resumes from it. So a run can be killed at any moment.
"""
