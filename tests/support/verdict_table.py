# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The verdict of every rule of scope stack on every type and system with every stack; `python tests/support/verdict_table.py` writes it."""

from __future__ import annotations

import functools
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import RULES
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import Case, judge, verdict
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

TABLE = Path(__file__).parents[1] / "fixtures/stack_verdicts.txt"
STACKS = ("aws-2026.11", "aws-2026.11-580", "debian-13", "debian-12")
SIGNS = {"passed": "+", "refused": "x", "warned": "w", "not_run": "?", "not_applicable": "."}
# Systems without a stack of their own, because some rules are only about them.
OTHER_SYSTEMS = ("amzn2", "debian10", "debian11", "rhel8", "rhel10", "ubuntu20.04")
SYSTEMS_TYPE = "p5.48xlarge"
EACH_COLUMN = 10


@functools.cache
def rows() -> tuple[tuple[str, str, str, dict[str, str]], ...]:
    """(stack, type, system, verdict by rule). Each rule looks at a case by itself, so one pass serves every table."""
    made = []
    for name in STACKS:
        stack = stack_files.load(name)
        cases = [(kind, stack["systems"][0]) for kind in catalogue.names()]
        cases += [(SYSTEMS_TYPE, system) for system in (*stack["systems"][1:], *OTHER_SYSTEMS)]
        for kind, system in cases:
            told = judge(Case(stack, catalogue.instance_type(kind), system=system), ("stack",))
            made.append((name, kind, system, {each["rule"]: each["verdict"] for each in told}))
    return tuple(made)


def table(without: tuple[str, ...] = ()) -> str:
    """The table as text; rules in `without` say nothing in it, as if they did not apply."""
    names = [name for name, rule in RULES.items() if rule.scope == "stack"]
    lines = [
        "Verdicts of the rules of scope stack (tests/support/verdict_table.py): + passed, x refused, w warned, ? not run, . does not apply."
    ]
    for start in range(0, len(names), EACH_COLUMN):
        lines.append(
            "columns %d to %d: %s" % (start + 1, min(start + EACH_COLUMN, len(names)), " ".join(names[start : start + EACH_COLUMN]))
        )
    for stack, kind, system, verdicts in rows():
        told = {name: "not_applicable" if name in without else verdicts[name] for name in names}
        signs = "".join(SIGNS[told[name]] for name in names)
        groups = " ".join(signs[start : start + EACH_COLUMN] for start in range(0, len(signs), EACH_COLUMN))
        lines.append(f"{stack:<16}{kind:<20}{system:<12}{verdict([{'verdict': each} for each in told.values()]):<8} {groups}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())
