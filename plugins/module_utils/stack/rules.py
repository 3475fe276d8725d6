# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All rules, and the verdict over a case."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest
from ansible_collections.muster.fleet.plugins.module_utils.stack import (
    rules_cuda,
    rules_efa,
    rules_env,
    rules_gpu,
    rules_jobs,
    rules_launch,
    rules_nccl,
)
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import RULES, SCOPES, Case, Missing

# Each of them registered its rules when it was imported. The report has the rules in this order.
PARTS = (rules_gpu, rules_cuda, rules_efa, rules_nccl, rules_jobs, rules_launch, rules_env)
for registered in [each for part in PARTS for each in RULES.values() if each.function.__module__ == part.__name__]:
    RULES[registered.name] = RULES.pop(registered.name)
WORST_FIRST = ("refused", "warned", "not_run", "passed", "not_applicable")


def judge(case, scopes=SCOPES, without=()):
    """[{rule, scope, verdict, says, reason, source, works}] in the order of the rules; `without` leaves some out.

    verdict: passed, refused, warned, not_applicable, or not_run where an input is missing, which `says` then names.
    """
    told = []
    for rule in RULES.values():
        if rule.scope not in scopes or rule.name in without:
            continue
        says, works = "", {}
        try:
            answer = rule.function(case)
            verdict = "not_applicable" if answer is None else "passed" if answer == "" else "warned" if rule.warn else "refused"
            if answer:
                says, works = str(answer), dict(answer.works)
        except Missing as error:
            verdict, says = "not_run", str(error)
        told.append(
            {
                "rule": rule.name,
                "scope": rule.scope,
                "verdict": verdict,
                "says": says,
                "works": works,
                "reason": rule.reason,
                "source": rule.source,
            }
        )
    return told


def verdict(told):
    """The worst of them: refused, warned or passed."""
    found = {each["verdict"] for each in told}
    return next((each for each in ("refused", "warned") if each in found), "passed")


def sentence(each):
    """A verdict as one sentence."""
    return "%s, because %s (rule %s)." % (each["says"], each["reason"], each["rule"])


def override_faults(overrides):
    """One sentence for each fault of {rule: reason}, the rules that a site overrides."""
    if not isinstance(overrides, dict):
        return ["muster_rule_overrides must be a mapping of rules to reasons, and is %r." % (overrides,)]
    said = []
    for name, why in overrides.items():
        if name not in RULES:
            near = closest(name, RULES)
            said.append(
                "muster_rule_overrides names the unknown rule %s; %s."
                % (name, "the nearest is " + near[0] if near else "stack_explain.yml prints the rules")
            )
        elif not isinstance(why, str) or not why.strip():
            said.append("muster_rule_overrides gives no reason for rule %s; say why it does not count here." % name)
    return said


def refusals(told, overrides=None):
    """(what refuses, {rule: reason} of what would refuse and is overridden) of the verdicts of `judge`."""
    refused = [each for each in told if each["verdict"] == "refused"]
    overrides = overrides or {}
    return (
        [each for each in refused if each["rule"] not in overrides],
        {each["rule"]: overrides[each["rule"]] for each in refused if each["rule"] in overrides},
    )


def explain(result):
    """Lines for a person of {stack, instance_type, system, verdict, rules, stacks_that_work?}: the worst first, what passed as a number."""
    by_verdict = {each: [rule for rule in result["rules"] if rule["verdict"] == each] for each in WORST_FIRST}
    what = {"passed": "works", "warned": "works, with warnings,", "refused": "does not work"}[result["verdict"]]
    where = " on " + result["system"] if result["system"] else ""
    lines = ["%s %s with stack %s%s." % (result["instance_type"], what, result["stack"], where)]
    lines += ["  %s: %s" % (each, sentence(rule)) for each in ("refused", "warned") for rule in by_verdict[each]]
    for rule in by_verdict["refused"] + by_verdict["warned"]:
        lines += [
            "  would work: %s %s (rule %s; %s)." % (name, works, rule["rule"], rule["source"]) for name, works in rule["works"].items()
        ]
    lines += ["  not run: %s, because %s." % (rule["rule"], rule["says"]) for rule in by_verdict["not_run"]]
    if result.get("stacks_that_work"):
        lines.append("  Stacks with which it works: %s." % ", ".join(result["stacks_that_work"]))
    lines.append("  %d rules passed, %d do not apply." % (len(by_verdict["passed"]), len(by_verdict["not_applicable"])))
    return lines


__all__ = ["RULES", "SCOPES", "WORST_FIRST", "Case", "explain", "judge", "override_faults", "refusals", "sentence", "verdict"]
