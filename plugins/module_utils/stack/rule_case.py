# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rule is, and what it looks at.

A rule is a function of a Case. It returns None when it does not apply to the case, "" when the case meets it, and otherwise a Broken with
what must hold. It asks the case for its inputs; a missing input raises Missing, and the rule is reported as not run.
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key

SCOPES = ("stack", "launch", "env")
GPU_ARCHITECTURES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin")
# Components that work with the hardware, so a container has those of its host.
OF_THE_HOST = ("nvidia_driver", "fabricmanager", "nscq", "imex", "nvlsm")
# The oldest kernel that a system boots with, for rules about kernels before a node exists.
KERNELS = {
    "amzn2023": "6.1",
    "debian12": "6.1",
    "debian13": "6.12",
    "rhel9": "5.14",
    "rocky9": "5.14",
    "ubuntu22.04": "5.15",
    "ubuntu24.04": "6.8",
}
RULES: dict[str, Rule] = {}  # by id, in the order of the report


class Missing(Exception):
    """An input of a rule is not there; the text says which."""


class Broken(str):
    """What must hold, as a sentence without its end. `works` maps components to versions that meet it: {"cuda": ">= 12.8"}."""

    works: dict[str, str] = {}

    def __new__(cls, text, **works):
        made = super().__new__(cls, text)
        made.works = works
        return made


class Rule:
    """A rule with what the report says of it."""

    def __init__(self, name, scope, *, reason, source, warn, function):
        self.name, self.scope, self.reason, self.source, self.warn, self.function = name, scope, reason, source, warn, function


def rule(name, scope, *, reason, source, warn=False):
    """Register a function as the rule of this id. With `warn` it never refuses."""

    def register(function):
        if name in RULES:
            raise ValueError("There are two rules %s." % name)
        RULES[name] = Rule(name, scope, reason=reason, source=source, warn=warn, function=function)
        return function

    return register


class Case:
    """The inputs: a stack, an instance type of the catalogue, a system, its kernel, a launch, an environment. Each may be missing.

    With `container` the stack is that of a container image, which has the driver of its host.
    """

    def __init__(self, stack=None, instance_type=None, *, system="", kernel="", launch=None, env=None, nodes=0, container=False):
        self.container = container
        self.stack, self.instance_type, self._system = stack or {}, instance_type, system
        self._kernel, self.launch, self.environment, self._nodes = kernel, launch or {}, env, nodes

    # What may be missing.

    def type(self, key):
        if self.instance_type is None:
            raise Missing("no instance type is given")
        return self.instance_type[key]

    @property
    def system(self):
        if not self._system:
            raise Missing("no operating system is given")
        return self._system

    @property
    def kernel(self):
        """The node's kernel; before a node exists, the oldest that its system boots with."""
        kernel = self._kernel or KERNELS.get(self.system)
        if not kernel:
            raise Missing("nothing says the kernel of %s" % self.system)
        return kernel

    @property
    def nodes(self):
        if not self._nodes:
            raise Missing("the number of nodes is not given")
        return self._nodes

    @property
    def env(self):
        if self.environment is None:
            raise Missing("no environment is given")
        return self.environment

    def launched(self, *path):
        place = self.launch
        for key in path:
            if not isinstance(place, dict) or place.get(key) is None:
                raise Missing("the launch does not say its %s" % " ".join(path).replace("_", " "))
            place = place[key]
        return place

    def has(self, name):
        """Whether the stack has a component."""
        if self.container and name in OF_THE_HOST:
            raise Missing("a container has the %s of its host" % name)
        return name in self.stack

    def component(self, name):
        if not self.has(name):
            raise Missing("the stack has no %s" % name)
        return self.stack[name]

    def wheel(self, name):
        """The version of a wheel that jobs use."""
        if name not in self.stack.get("wheels", {}):
            raise Missing("the stack names no wheel %s" % name)
        return self.stack["wheels"][name]

    def version(self, name):
        version = self.component(name)["version"]
        if version == "*":
            raise Missing("the stack leaves the version of %s open" % name)
        return version

    # Questions that many rules ask.

    @property
    def nvidia(self):
        return self.type("accelerator") == "nvidia"

    def gpu_at_least(self, oldest):
        return self.nvidia and GPU_ARCHITECTURES.index(self.type("gpu_arch")) >= GPU_ARCHITECTURES.index(oldest)

    @property
    def branch(self):
        return int(self.version("nvidia_driver").split(".")[0])

    @property
    def kernel_modules(self):
        kind = self.component("nvidia_driver").get("kernel_modules", "open")
        return kind if kind != "by_gpu" else "proprietary" if self.type("gpu_arch") == "volta" else "open"

    def major(self, name):
        return int(self.version(name).split(".")[0])

    def at_least(self, *wanted):
        """The first of ("nccl", "2.17.1"), … that is older, as Broken; one that is missing counts when none is older."""
        missing = None
        for name, oldest in wanted:
            try:
                if version_key(self.version(name)) < version_key(oldest):
                    return Broken("%s must be %s or later and is %s" % (name, oldest, self.version(name)), **{name: ">= " + oldest})
            except Missing as error:
                missing = missing or error
        if missing:
            raise missing
        return ""

    def at_most(self, name, newest):
        """Compare only as many numbers of the version as `newest` has: 580.178.04 is no later than 580."""
        limit = version_key(newest)
        if version_key(self.version(name))[: len(limit)] > limit:
            return Broken("%s must be %s or earlier and is %s" % (name, newest, self.version(name)), **{name: "<= " + newest})
        return ""

    def same_version(self, name, other):
        if not self.has(name):
            return Broken("the stack must have %s, of the version of %s" % (name, other))
        if self.version(name) != self.version(other):
            return Broken(
                "%s must be %s, as %s, and is %s" % (name, self.version(other), other, self.version(name)),
                **{name: "= " + self.version(other)},
            )
        return ""


def broken_unless(holds, text, **works):
    """ "" when something holds, and otherwise a Broken."""
    return "" if holds else Broken(text, **works)
