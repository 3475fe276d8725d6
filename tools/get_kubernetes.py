#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Puts the programs of a local Kubernetes, and its operators with their manifests, into the cache.

Kubernetes itself is the vendor's release where that answers, checked by its checksum, else a build from the Go modules (checked
by localkube/build/*/go.sum or Go's checksum database), once per machine. The operators are always built, each in its own module, from
which their manifests come too. What Debian packages have is unpacked into the cache, unless this machine has it.

  tools/get_kubernetes.py [--operators training-operator,jobset]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError, NoSpaceError, check_sum, fetch, writing
from localkube import LocalKubeError
from localkube.images import operator_image
from localkube.programs import CLUSTER, COREDNS, DEBIAN, KUBERNETES, OPERATORS, VERSIONS, built, find, folder, manifest, search_path

RELEASES = "https://dl.k8s.io/release"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
STRIP = "-s -w"
BUILD = ROOT / "localkube" / "build"
# Module of ours -> the packages to build in it: {program: package}.
MODULES = {
    "cluster": {name: f"k8s.io/kubernetes/cmd/{name}" for name in CLUSTER},
    "dns": {"coredns": "."},
    "pause": {"pause": "."},
    "device-plugin": {"device-plugin": "."},
}


class KubernetesError(Exception):
    """A program cannot be had; the text is one sentence for the user."""


def say(text: str) -> None:
    print(f"kubernetes: {text}", flush=True)


def run(argv: list[str], cwd: Path | None = None, timeout: float = 7200, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without input; one that cannot start ends with 127."""
    try:
        return subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]} is not there")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def find_go() -> str:
    """Go on PATH or at the path of its own installer."""
    usual = "/usr/local/go/bin/go"
    found = shutil.which("go") or (usual if os.access(usual, os.X_OK) else "")
    if not found:
        raise KubernetesError(f"There is no Go to build with, and {RELEASES} does not answer; install Go.")
    return found


def from_release(name: str, releases: str = RELEASES) -> None:
    """A program of Kubernetes from the vendor, checked by the checksum beside it. Raises DownloadError."""
    machine = MACHINES.get(platform.machine(), platform.machine())
    url = f"{releases}/v{KUBERNETES}/bin/linux/{machine}/{name}"
    target = built(name, os.environ)
    with tempfile.TemporaryDirectory(dir=target.parent) as text:
        work = Path(text)
        fetch(f"{url}.sha256", work / "sum", wait=0.2)
        fetch(url, work / name, wait=0.2)
        check_sum(work / name, (work / "sum").read_text().split()[0], url)
        move_to(work / name, target)


def move_to(new: Path, path: Path) -> None:
    new.chmod(0o755)
    new.replace(path)


def flags(module: str) -> str:
    """kubectl refuses to compare the versions of programs that say no version."""
    if module != "cluster":
        return STRIP
    major, minor, _patch = KUBERNETES.split(".")
    said = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitCommit": "modules", "gitTreeState": "clean"}
    return " ".join([STRIP, *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in said.items())])


def go_build(go: str, where: Path, packages: dict[str, str], title: str, options: str) -> None:
    """Build programs of one module into the cache, all at once, so that they share what they compile. Raises KubernetesError."""
    with tempfile.TemporaryDirectory(dir=folder(os.environ)) as text:
        for name, package in packages.items():
            say(f"building {name} {VERSIONS[name]}" + (", which takes some minutes" if name == CLUSTER[0] else ""))
            new = Path(text) / name
            argv = [go, "build", "-mod=readonly", "-trimpath", f"-ldflags={options}", "-o", str(new), package]
            done = run(argv, where, CGO_ENABLED="0", GOFLAGS="-buildvcs=false")
            if done.returncode != 0:
                raise KubernetesError(f"{title} does not build ({last_line(done)}).")
            move_to(new, built(name, os.environ))


def module_folder(go: str, name: str) -> Path:
    """Where Go keeps the source of an operator. Raises KubernetesError."""
    operator = OPERATORS[name]
    asked = f"{operator.module}@v{operator.version}"
    done = run([go, "mod", "download", "-json", asked], Path("/"), 900)
    if done.returncode != 0:
        raise KubernetesError(f"{asked} is not to be had as a Go module ({last_line(done)}).")
    return Path(json.loads(done.stdout)["Dir"])


def rendered(name: str, source: Path) -> str:
    """An operator's own manifest. source: the folder of its module."""
    kustomization = OPERATORS[name].kustomization
    with tempfile.TemporaryDirectory() as text:
        # Modules in Go's cache are read-only, and a resource on the internet is applied on its own.
        work = Path(text) / "source"
        top = kustomization.split("/")[0]
        shutil.copytree(source / top, work / top)
        for each in work.rglob("kustomization.yaml"):
            each.parent.chmod(0o755)
            each.chmod(0o644)
            each.write_text("".join(line for line in each.read_text().splitlines(keepends=True) if "third-party/jobset" not in line))
        done = run([str(find("kubectl", os.environ)), "kustomize", str(work / kustomization)], timeout=120)
        for each in [work, *(path for path in work.rglob("*") if path.is_dir())]:
            each.chmod(0o755)
    if done.returncode != 0:
        raise KubernetesError(f"The manifest of {name} cannot be rendered ({last_line(done)}).")
    return done.stdout


def adapted(name: str, text: str) -> str:
    """A manifest whose pods run the images of localkube, are looked at every two seconds, and leave the nodes' CPUs to jobs."""
    objects = [each for each in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]
    for each in objects:
        if each["kind"] != "Deployment":
            continue
        for container in each["spec"]["template"]["spec"]["containers"]:
            container.update(image=operator_image(name), imagePullPolicy="IfNotPresent")
            container.get("resources", {}).pop("requests", None)
            container.get("resources", {}).get("limits", {}).pop("cpu", None)  # a limit is a request, too
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if probe in container:
                    container[probe].update(initialDelaySeconds=1, periodSeconds=2, failureThreshold=60 if probe == "livenessProbe" else 3)
    return yaml.dump_all(objects, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def debian() -> None:
    """Unpack the packages whose programs this machine lacks. Raises KubernetesError."""
    path = search_path(os.environ)
    missing = [package for package, names in DEBIAN.items() if not all(shutil.which(name, path=path) for name in names)]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise KubernetesError(
            f"This machine has no {', '.join(missing)}; install what has these programs: containerd, CNI plugins, etcd, runc."
        )
    say(f"unpacking {', '.join(missing)} of Debian")
    with tempfile.TemporaryDirectory(dir=folder(os.environ)) as work:
        done = run(["apt-get", "download", *missing], Path(work), 900)
        if done.returncode != 0:
            run(["apt-get", "update"], timeout=900)
            done = run(["apt-get", "download", *missing], Path(work), 900)
        if done.returncode != 0:
            raise KubernetesError(f"{', '.join(missing)} cannot be downloaded ({last_line(done)}).")
        for archive in Path(work).glob("*.deb"):
            unpacked = run(["dpkg", "-x", str(archive), str(folder(os.environ) / "debian")], timeout=300)
            if unpacked.returncode != 0:
                raise KubernetesError(f"{archive.name} cannot be unpacked ({last_line(unpacked)}).")


def obtain(operators: list[str]) -> None:
    """Everything that is not there yet. Raises KubernetesError."""
    missing = [name for name in CLUSTER if not built(name, os.environ).exists()]
    why = ""
    for name in missing:
        try:
            from_release(name)
        except NoSpaceError as error:  # a build needs more
            raise KubernetesError(str(error)) from error
        except DownloadError as error:
            why = str(error).rstrip(".")
            break
    if why:
        say(f"Kubernetes {KUBERNETES} is not had from the vendor ({why})")
    for module, programs in MODULES.items():
        lacking = {name: package for name, package in programs.items() if not built(name, os.environ).exists()}
        if lacking:
            go_build(find_go(), BUILD / module, lacking, f"localkube/build/{module}", flags(module))
    for name in operators:
        if not built(name, os.environ).exists():
            go = find_go()
            go_build(go, module_folder(go, name), {name: OPERATORS[name].package}, OPERATORS[name].module, STRIP)
        own = manifest(name, os.environ)
        if not own.exists():
            text = rendered(name, module_folder(find_go(), name))
            for path, content in ((own.with_suffix(".local.yaml"), adapted(name, text)), (own, text)):
                part = path.with_suffix(".part")
                part.write_text(content)
                part.replace(path)
    debian()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--operators",
        default="training-operator",
        help="names with commas between, training-operator by default; of %s" % ", ".join(OPERATORS),
    )
    operators = [name for name in parser.parse_args(argv).operators.split(",") if name]
    unknown = [name for name in operators if name not in OPERATORS]
    if unknown:
        print(f"kubernetes: there is no operator {unknown[0]}; name some of {', '.join(OPERATORS)}.", file=sys.stderr)
        return 1
    where = folder(os.environ)
    try:
        with writing(where, "Kubernetes"):
            where.mkdir(parents=True, exist_ok=True)
            lock = (where / "lock").open("w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            obtain(operators)
    except (KubernetesError, LocalKubeError, NoSpaceError) as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 1
    say(f"Kubernetes {KUBERNETES}, CoreDNS {COREDNS} and {', '.join(f'{name} {VERSIONS[name]}' for name in operators)} are in {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
