# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role nccl_tests builds from a stub archive: a program with MPI, and the list of packages with its libraries."""

from __future__ import annotations

PROGRAM = "/opt/nccl-tests/bin/all_reduce_perf"


def test_the_program_has_mpi_and_reports_that_there_is_no_gpu(host):
    assert "libmpi.so" in host.check_output(f"ldd {PROGRAM}")
    said = host.run(PROGRAM)
    assert (said.rc, "no CUDA-capable device is detected" in said.stdout) == (3, True)


def test_its_libraries_are_known_as_packages(host):
    """A node that only unpacks the build of another node installs these."""
    names = host.check_output("cat /opt/nccl-tests/.muster-packages").splitlines()
    assert any(name.startswith("libopenmpi") for name in names) and all(host.package(name).is_installed for name in names)
