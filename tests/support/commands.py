# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Whether a command line works as written: `faults` checks it against the Makefile, the playbooks, the modules and the real parsers."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

# Other people's commands. A new one fails the test once, so that somebody looks at it.
FOREIGN = re.compile(
    r"ansible-galaxy|apt(-get|-mirror)?|aws|bash|cd|chronyc|cp|curl|cut|dcgmi|df|docker|du|eksctl|enroot|envsubst|export|exportfs"
    r"|fi_info|git|grep|iptables|journalctl|kill|kubectl|ldconfig|ldd|lsblk|mariadb-dump|mpirun|muster-health|muster-rehearsal"
    r"|muster-watch|nsys|nvidia-ctk|nvidia-smi|pam-auth-update|pcluster|podman|reposync|rm|sacctmgr|scontrol|scp|setcap|sinfo|slurmd"
    r"|srun|ssh|sss_cache|sudo|sysctl|systemctl|tar|uname|uv"
)
PACKER = {"-var", "-var-file", "-on-error", "-debug", "-only", "-except", "-force", "-timestamp-ui"}
MOLECULE = {"test", "create", "converge", "check", "idempotence", "verify", "destroy", "login", "list", "reset"}
# A class that accepts every access and call replaces torch, because --help needs no more.
WITHOUT_TORCH = """
import importlib.abc, importlib.machinery, runpy, sys, types
ABSENT = ("torch", "numpy", "datasets", "tokenizers", "transformers", "safetensors", "huggingface_hub", "tensorboard")
class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"): raise AttributeError(name)
        return Meta(name, (), {})
    def __call__(cls, *args, **kwargs): return args[0] if args and callable(args[0]) else cls
    def __or__(cls, other): return cls
    __ror__ = __or__
    def __iter__(cls): return iter(())
class Module(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Meta(name, (), {})
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ABSENT: return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return Module(spec.name)
    def exec_module(self, module): pass
sys.meta_path.append(Finder())
module, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, ".")
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run(*argv: str | Path) -> str:
    """What a command prints to standard output."""
    ended = subprocess.run([*map(str, argv)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, f"{argv}: {ended.stderr[-2000:]}"
    return ended.stdout


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


# Flags of torchrun itself, because this environment has no torch.
TORCHRUN = flags_in("-m --nproc-per-node --nnodes --node-rank --rdzv-backend --rdzv-endpoint --rdzv-id --max-restarts --standalone")


@functools.cache
def ansible_flags(program: str) -> set[str]:
    return flags_in(run(BIN / program, "--help"))


@functools.cache
def pytest_flags() -> set[str]:
    return flags_in(run(sys.executable, "-m", "pytest", "--help"))


@functools.cache
def module_help(module: str, *command: str) -> str:
    return run(sys.executable, "-c", WITHOUT_TORCH, module, *command, "--help")


@functools.cache
def trainer_commands() -> list[str]:
    return re.findall(r"^  ([a-z-]+)  ", module_help("trainer"), re.M)


@functools.cache
def subcommands(module: str) -> list[str]:
    """The commands that a program's parser lists in its usage."""
    listed = re.search(r"\{([a-z,-]+)\}", module_help(module))
    return trainer_commands() if module == "trainer" else listed[1].split(",") if listed else []


@functools.cache
def documented() -> dict[str, dict[str, Any]]:
    """ansible-doc's answer: type of plugin → name → its documentation."""
    dump = json.loads(run(BIN / "ansible-doc", "--metadata-dump", "--no-fail-on-errors", "muster.fleet"))["all"]
    return {kind: {name.removeprefix("muster.fleet."): each for name, each in plugins.items()} for kind, plugins in dump.items()}


@functools.cache
def variables() -> dict[str, dict[str, Any]]:
    """Every variable that the playbooks and roles know."""
    known: dict[str, dict[str, Any]] = {}
    for path in [ROOT / "playbooks/meta/argument_specs.yml", *ROOT.glob("roles/*/meta/argument_specs.yml")]:
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            known |= spec.get("options") or {}
    return known


@functools.cache
def make_targets() -> dict[str, str]:
    """Target → everything that it reads: its recipe, and the scripts and packages that the recipe runs."""
    targets: dict[str, str] = {}
    for name, needs, recipe in re.findall(r"^([a-z][\w-]*):(?!=)(.*)\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.M):
        targets[name] = targets.get(name, "") + needs.split("##")[0] + recipe
    for name, recipe in targets.items():
        files = [ROOT / file for file in re.findall(r"[\w./-]+\.(?:sh|py)\b", recipe)]
        for module in re.findall(r"-m ([\w.]+)", recipe):
            files += (ROOT / module.replace(".", "/")).glob("*.py")
        if "setup" in recipe.split():
            files.append(ROOT / "tools/setup.sh")
        targets[name] += "".join(file.read_text() for file in files if file.is_file())
    return targets


# Checks of one command. Each gives its faults, as sentences.


def make(command: str) -> Iterator[str]:
    words = re.sub(r"=(\"[^\"]*\"|'[^']*')", "=X", command).split()[1:]
    targets = [word for word in words if re.fullmatch(r"[a-z][\w-]*", word)]
    for target in targets:
        if target not in make_targets():
            yield f"the Makefile has no target {target}"
    for name in re.findall(r"\b([A-Z][A-Z_]+)=", command):
        if not any(re.search(rf"\b{name}\b", make_targets().get(target, "")) for target in targets):
            yield f"no recipe of make {' '.join(targets)} reads {name}"


def option_faults(given: Any, options: dict[str, Any], what: str) -> Iterator[str]:
    """Keys that an option's own documentation does not have, at any depth."""
    if isinstance(given, list):
        for each in given:
            yield from option_faults(each, options, what)
    elif isinstance(given, dict):
        names = {alias: name for name, each in options.items() for alias in [name, *each.get("aliases", ())]}
        for key, value in given.items():
            if key not in names:
                yield f"{what} has no option {key}"
            elif deeper := options[names[key]].get("options") or options[names[key]].get("suboptions"):
                yield from option_faults(value, deeper, f"{what}.{key}")


def extra_faults(command: str, playbooks: list[str]) -> Iterator[str]:
    given = {name: None for name in re.findall(r"-e ['\"]?([a-z_]\w*)=", command)}
    for text in re.findall(r"-e '?(\{.*\})'?", command):
        try:
            given |= json.loads(text)
        except json.JSONDecodeError:
            yield f"-e {text} is not JSON"
    for name, value in given.items():
        if name in variables():
            yield from option_faults(value, variables()[name].get("options") or {}, name) if variables()[name].get("options") else ()
        # A playbook that is about one thing names it without a prefix: ami, job.
        elif name.startswith("muster_") or not any(re.search(rf"\b{name}\b", (ROOT / path).read_text()) for path in playbooks):
            yield f"no playbook or role knows the variable {name}"


def ansible(command: str) -> Iterator[str]:
    program = command.split(maxsplit=1)[0].rpartition("/")[2]
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "X", command)  # quoted text has no flags
    yield from (f"{program} has no flag {flag}" for flag in sorted(flags_in(bare) - ansible_flags(program)))
    if program == "ansible-playbook":
        playbooks = re.findall(r"(?<![\w=@./-])[\w./-]+\.yml\b", re.sub(r"\s-i \S+", "", bare))  # an inventory is no playbook
        there = [path if "/" in path or (ROOT / path).is_file() else f"playbooks/{path}" for path in playbooks]
        for path in there:
            if not (ROOT / path).is_file():
                yield f"there is no playbook {path}"
        yield from extra_faults(command, [path for path in there if (ROOT / path).is_file()])
    elif program == "ansible" and (module := re.search(r"-m muster\.fleet\.(\w+)", command)):
        options = documented()["module"].get(module[1], {}).get("doc", {}).get("options", {})
        given = dict.fromkeys(re.findall(r"(\w+)=", command.partition(" -a ")[2]))
        yield from option_faults(given, options, module[1])


def python_module(command: str) -> Iterator[str]:
    """`python -m MODULE`, `torchrun … -m MODULE`, with the flags behind it."""
    before, _, after = command.partition(" -m ")
    if "torchrun" in before:
        yield from (f"torchrun has no flag {flag}" for flag in sorted(flags_in(before) - TORCHRUN))
    module, *words = after.split() or [""]
    module = module.strip(".,;:)")
    if module.split(".")[0] not in ("trainer", "tests", "localcloud", "localkube", "tools"):
        return
    folder = ROOT / module.replace(".", "/")
    file = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not file.is_file() or not re.search(r"^if __name__ == ['\"]__main__", file.read_text(), re.M):
        yield f"python -m {module} does not exist"
        return
    sub = []
    if module in ("trainer", "localkube") and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        if words[0] not in subcommands(module):
            yield f"python -m {module} has no command {words[0]}"
            return
        sub = words[:1]
    if sub and module == "localkube":
        usage = module_help(module, *sub)
        given = words[1:]
        if " ... " in usage.replace("\n", " "):  # words of another program follow the name
            given = given[: next((place for place, word in enumerate(given) if not word.startswith("-")), len(given))]
        yield from (f"python -m {module} {sub[0]} has no flag {flag}" for flag in sorted(flags_in(" ".join(given)) - flags_in(usage)))
        return
    yield from program_flags(
        " ".join(words[len(sub) :]).partition("-- ")[0], file, lambda: module_help(module, *sub), f"python -m {' '.join([module, *sub])}"
    )


def program_flags(arguments: str, file: Path, help_text: Callable[[], str], name: str) -> Iterator[str]:
    """Flags that neither --help nor the program's own text (for those that --help hides, and for programs without a parser) has."""
    if given := flags_in(arguments):
        known = flags_in(" ".join(re.findall(r"[\"'](--?[\w-]+)[\"']", file.read_text())))
        known |= flags_in(help_text()) if given - known else set()
        yield from (f"{name} has no flag {flag}" for flag in sorted(given - known))


def script(command: str) -> Iterator[str]:
    """`python tools/X.py --flag`, `tests/X.sh`."""
    path = next(word for word in command.split() if re.search(r"\.(py|sh)$", word))
    file = ROOT / path
    if not file.is_file():
        yield f"there is no {path}"
    elif file.suffix == ".py":
        module = path.removesuffix(".py").replace("/", ".")
        yield from program_flags(command.partition(path)[2], file, lambda: module_help(module), path)
    elif command.split(maxsplit=1)[0] == path and not file.stat().st_mode & 0o100:
        yield f"{path} is not executable"


def packer(command: str) -> Iterator[str]:
    words = command.split()
    if words[1:2] and words[1] not in ("build", "init", "validate", "plugins", "fmt", "inspect", "version"):
        yield f"packer has no command {words[1]}"
    yield from (f"packer build has no flag {flag}" for flag in sorted(flags_in(re.sub(r"'[^']*'", "X", command)) - PACKER))
    yield from (f"there is no {path}" for path in re.findall(r"-var-file=(\S+)", command) if not (ROOT / path).is_file())
    if names := re.findall(r"-var '?(\w+)=", command):
        folder = ROOT / (words[-1] if (ROOT / words[-1]).is_dir() else "packer")
        declared = re.findall(r'^variable "(\w+)"', "".join(file.read_text() for file in folder.glob("*.pkr.hcl")), re.M)
        yield from (f"{folder.relative_to(ROOT)} has no variable {name}" for name in names if name not in declared)


def molecule(command: str) -> Iterator[str]:
    word = [*command.split(), ""][1]
    if word not in MOLECULE:
        yield f"molecule has no command {word}"


def pytest_command(command: str) -> Iterator[str]:
    yield from (f"pytest has no flag {flag}" for flag in sorted(flags_in(command) - pytest_flags()))
    yield from (f"there is no {path}" for path in re.findall(r"[\w./-]+\.py\b", command) if not (ROOT / path).is_file())


def faults(command: str, page: Path = ROOT, functions: tuple[str, ...] = ()) -> list[str]:
    """The faults of a command line. An unknown first word is a fault."""
    command = re.sub(r"^(\$ |sudo (?=\w)|[A-Z_]+=\S+ )+|…|\s#\s.*$", "", command.strip()).strip()
    command = re.sub(r"^srun (-\S+ (\S+ )?)*(?=python|torchrun)", "", command)
    if " && " in command:
        return [fault for part in command.split(" && ") for fault in faults(part, page, functions)]
    words = command.split()
    if not words:
        return []
    first = words[0].rpartition("/")[2]
    if words[0].startswith((".venv/", "../../.venv/")) and first not in ("python", "packer") and not (BIN / first).exists():
        return [f"the environment of `make setup` has no {first}"]
    if first == "make":
        return [*make(command)]
    if first.endswith(".yml"):
        return [*ansible(f"ansible-playbook {command}")]
    if first in ("ansible", "ansible-playbook", "ansible-inventory", "ansible-doc", "ansible-test"):
        return [*ansible(command)] if first != "ansible-test" else []
    if first in ("torchrun", "python", "python3") and " -m " in command:
        return [*python_module(command)]
    if any(re.fullmatch(r"(tests|tools|packer|recipes)/[\w/-]+\.(py|sh)", word) for word in words[:2]):
        return [*script(command)]
    if first in ("packer", "molecule", "pytest"):
        return [*{"packer": packer, "molecule": molecule, "pytest": pytest_command}[first](command)]
    if first == "pip":
        return [f"there is no {word}" for word in words if word.startswith("./") and not (ROOT / word).exists()]
    if first == "sbatch":
        return [f"there is no {word}" for word in words[1:] if not word.startswith("-") and not (page.parent / word).exists()]
    if words[0] == "." or FOREIGN.fullmatch(first) or first in functions:
        return []
    return [f"{first} is an unknown command; correct it, or name it in FOREIGN"]
