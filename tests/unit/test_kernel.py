# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The kernel that a node is to run, and why DKMS did not build for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware import kernel

LOG = (Path(__file__).parents[1] / "fixtures/kernel/make-550-on-6.12.log").read_text()
AT = "/var/lib/dkms/nvidia-current-open/550.163.01/build/make.log"


def install(root: Path, release: str, image: bool = True, headers: bool = True) -> None:
    (root / "lib/modules" / release).mkdir(parents=True)
    (root / "boot").mkdir(exist_ok=True)
    if image:
        (root / "boot" / f"vmlinuz-{release}").touch()
    if headers:
        source = root / "usr/src" / release
        source.mkdir(parents=True)
        (source / "Makefile").touch()
        (root / "lib/modules" / release / "build").symlink_to(source)


def test_the_target_is_the_newest_that_can_boot(tmp_path):
    for release in ("6.8.0-1009-aws", "6.8.0-1010-aws", "6.8.0-999-aws"):
        install(tmp_path, release, headers=False)
    # Modules of a kernel that is gone, and headers of one that was never there.
    install(tmp_path, "6.14.0-1-aws", image=False)
    have = kernel.releases(str(tmp_path))
    assert have == ["6.8.0-999-aws", "6.8.0-1009-aws", "6.8.0-1010-aws"]
    assert kernel.target(have) == "6.8.0-1010-aws"
    assert kernel.target(have, "6.8.0-999-aws") == "6.8.0-999-aws"
    assert not kernel.has_headers("6.8.0-1010-aws", str(tmp_path))
    with pytest.raises(
        kernel.KernelError, match=r"^Kernel 6\.9\.0 is not installed \(installed: 6\.8\.0-999-aws, .*; name its packages in"
    ):
        kernel.target(have, "6.9.0")


def test_a_container_has_headers_at_most(tmp_path):
    assert kernel.target(kernel.releases(str(tmp_path))) == ""
    install(tmp_path, "6.12.9+deb13-amd64", image=False)
    install(tmp_path, "6.12.10+deb13-amd64", image=False)
    install(tmp_path, "6.18.0", image=False, headers=False)
    assert kernel.target(kernel.releases(str(tmp_path))) == "6.12.10+deb13-amd64"


def test_amazon_linux_keeps_its_kernel_elsewhere(tmp_path):
    install(tmp_path, "6.1.102-111.187.amzn2023.x86_64", image=False)
    (tmp_path / "lib/modules/6.1.102-111.187.amzn2023.x86_64/vmlinuz").touch()
    assert kernel.releases(str(tmp_path)) == ["6.1.102-111.187.amzn2023.x86_64"]


@pytest.mark.parametrize(
    ("release", "system", "headers", "extra"),
    [
        ("6.8.0-1010-aws", "ubuntu", "linux-headers-6.8.0-1010-aws", ["linux-modules-extra-6.8.0-1010-aws"]),
        ("6.12.43+deb13-cloud-amd64", "debian", "linux-headers-6.12.43+deb13-cloud-amd64", []),
        (
            "6.1.102-111.187.amzn2023.x86_64",
            "amzn",
            "kernel-devel=6.1.102-111.187.amzn2023",
            ["kernel-modules-extra=6.1.102-111.187.amzn2023"],
        ),
        (
            "6.12.40-63.114.amzn2023.aarch64",
            "amzn",
            "kernel6.12-devel=6.12.40-63.114.amzn2023",
            ["kernel6.12-modules-extra=6.12.40-63.114.amzn2023"],
        ),
        ("5.14.0-503.11.1.el9_5.x86_64", "rhel", "kernel-devel=5.14.0-503.11.1.el9_5", ["kernel-modules-extra=5.14.0-503.11.1.el9_5"]),
    ],
)
def test_names_of_headers_and_further_modules(release, system, headers, extra):
    assert kernel.header_packages(release, system) == [headers]
    assert kernel.extra_packages(release, system) == extra


def test_packages_that_would_bring_another_kernel():
    kept = [
        "kernel",
        "kernel-core",
        "kernel-devel",
        "kernel-modules-extra",
        "kernel6.12",
        "kernel6.12-devel",
        "linux-aws",
        "linux-headers-amd64",
        "linux-image-6.8.0-1010-aws",
        "linux-modules-extra-aws",
    ]
    others = ["kernel-tools-libs2", "kernelshark", "linux-base", "linux-libc-dev", "linux-firmware", "kmod"]
    assert kernel.of_the_kernel([*others[:3], *kept, *others[3:]]) == kept


@pytest.mark.parametrize(
    ("line", "status", "release"),
    [
        ("nvidia-current-open/535.261.03, 6.1.0-41-amd64, x86_64: installed", "installed", "6.1.0-41-amd64"),
        ("nvidia, 510.47.03, 5.4.0-109-generic, x86_64: installed", "installed", "5.4.0-109-generic"),
        ("nvidia/595.1, 6.8.0, x86_64: installed (WARNING! Diff between built and installed module!)", "installed", "6.8.0"),
        ("nvidia-current-open/550.163.01: added", "added", ""),
        ("nvidia/595.1, 6.8.0, x86_64: built", "built", "6.8.0"),
    ],
)
def test_dkms_status(line, status, release):
    [found] = kernel.parse_dkms(line + "\n")
    assert (found["status"], found["kernel"], found["module"][:6]) == (status, release, "nvidia")


def test_a_failed_build_shows_the_compilers_line():
    status = kernel.parse_dkms("nvidia-current-open/550.163.01: added\n")
    assert kernel.dkms_fault("nvidia", "6.12.117+deb13-amd64", status, {AT: LOG}) == (
        "DKMS did not build nvidia-current-open 550.163.01 for kernel 6.12.117+deb13-amd64: "
        "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'; "
        f"take a driver that knows this kernel, or an older kernel in kernel_packages (the whole log is {AT})."
    )


def test_what_is_not_installed_for_the_target_is_a_fault():
    status = kernel.parse_dkms(
        "nvidia/595.1, 6.8.0-1, x86_64: installed\nnvidia/595.1, 6.8.0-2, x86_64: built\nefa/3.3.1, 6.8.0-2, x86_64: installed\n"
    )
    assert kernel.dkms_fault("nvidia", "6.8.0-1", status, {}) == ""
    assert kernel.dkms_fault("nvidia", "6.8.0-2", status, {}) == (
        "DKMS has not built nvidia 595.1 for kernel 6.8.0-2; install the headers of that kernel and run `dkms autoinstall -k 6.8.0-2`."
    )
    # An empty output is no proof of a build.
    assert kernel.dkms_fault("nvidia", "6.8.0-1", [], {}) == "DKMS has no module nvidia; install the package that brings its source."


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "  CC nv.o\nnv.c:1:1: warning: x\nnv.c:2:10: fatal error: linux/x.h: No such file\nmake: *** [x] Error 2\n",
            "nv.c:2:10: fatal error: linux/x.h",
        ),
        ("make[1]: *** No rule to make target 'modules'.  Stop.\n", "make[1]: *** No rule to make target"),
        ("ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'x'\n", "ERROR: modpost: GPL-incompatible"),
        ("all is well\n", ""),
    ],
)
def test_line_that_says_what_is_wrong(log, line):
    said = kernel.compiler_line(log)
    assert said.startswith(line) and bool(said) == bool(line)
