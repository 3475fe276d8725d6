# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Loads NCCL and prints its version. With `start` it starts NCCL as a job's first rank does: this reads /etc/nccl.conf and needs no GPU.

With `inspector PATH` it loads that profiler plugin instead, and prints the interfaces that it has."""

import ctypes
import sys

if sys.argv[1:2] == ["inspector"]:
    plugin = ctypes.CDLL(sys.argv[2])
    print(*[name for name in ("ncclProfiler_v%d" % number for number in range(1, 20)) if hasattr(plugin, name)])
    sys.exit()
nccl = ctypes.CDLL("libnccl.so.2")
number = ctypes.c_int()
nccl.ncclGetVersion(ctypes.byref(number))
print("%d.%d.%d" % (number.value // 10000, number.value // 100 % 100, number.value % 100))
if sys.argv[1:] == ["start"]:
    sys.stdout.flush()
    nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
