# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Runs the slow tests and keeps the record of what they gave.

tests/proofs.json lists the proofs: `name`, `about` (a cell of the table in docs/support.md), `inputs` (globs below the checkout, as git
understands them), `command` (argv), `budget` in seconds (a proof is stopped at 1.5 times its budget), and where they are needed
`alone: true` (no other proof runs meanwhile) or `lock` (no other proof with the same lock does). The last run of each proof is in
tests/proof/records/NAME.json: `inputs_sha256`, `date`, `seconds`, `result` (passed, failed, or not_run when the command ended with 75:
something that it needs is not available here, such as an archive), and `executed`, the files of the checkout that it opened, imported or
started.

A proof is stale when its command or an own input changed, and due when another file that it executed changed.

    proofs.py check     names the proofs that are stale, failed, not run (exit code 1) and due; with --release due ones fail, too
    proofs.py run       runs all that make `check` fail; with --due the due ones as well; with names those
    proofs.py rerun     checks, then runs some proofs again, due ones first, chosen by the commit's hash; writes no record
    proofs.py table     checks the table in docs/support.md; with --write writes it
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "support"))

from proof_files import Files
from proof_run import Running, inputs_sha256, paths, run_all

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- proofs: begin -->", "<!-- proofs: end -->"
LINES = 200  # of a failed proof's output


class State(NamedTuple):
    """What can be said of a proof: `holds`, `due`, or what makes it fail the check; and the rest of a sentence."""

    name: str
    why: str = ""


def scenario_proof(role: str) -> dict[str, Any]:
    """The proof of a role's scenario that tests/proofs.json does not list."""
    return {
        "name": f"molecule-{role}",
        "about": f"the Molecule scenario of role {role}",
        "inputs": ["requirements/dev.txt", f"roles/{role}/**"],
        "command": ["sh", "-c", f"cd roles/{role} && ../../.venv/bin/molecule test"],
        "budget": 240,
    }


class Proofs:
    """The proofs of a checkout and their records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        document = json.loads((root / "tests/proofs.json").read_text())
        self.all: dict[str, dict[str, Any]] = {proof["name"]: proof for proof in document["proofs"]}
        for scenario in sorted(root.glob("roles/*/molecule/default/molecule.yml")):
            self.all.setdefault(f"molecule-{scenario.parts[-4]}", scenario_proof(scenario.parts[-4]))
        self.records = {name: self._read(name) for name in self.all}
        self.uncommitted: set[str] = set()  # files whose change made a proof due
        files = Files(root)
        self.states = {name: self._state(name, files) for name in self.all}

    def record_file(self, name: str) -> Path:
        return self.root / f"tests/proof/records/{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        file = self.record_file(name)
        return json.loads(file.read_text()) if file.exists() else {}

    def write(self, name: str, record: dict[str, Any]) -> None:
        file = self.record_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n")

    def _state(self, name: str, files: Files) -> State:
        proof, record = self.all[name], self.records[name]
        now = inputs_sha256(proof, files)
        if not record:
            return State("never", "was never run")
        if record["inputs_sha256"] != now:
            return State("stale", f"is stale: its command or one of its inputs changed after its run of {record['date']}")
        if record["result"] == "not_run":
            return State("not_run", f"could not be run on {record['date']}")
        if record["result"] != "passed":
            return State("failed", f"failed on {record['date']}" + (f": {record['reason']}" if "reason" in record else ""))
        if "executed" not in record:
            return State("due", "its executed files were not recorded yet")
        changed = [path for path, digest in paths(record["executed"]).items() if files.digest(path)[:12] != digest]
        if not changed:
            return State("holds")
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return State("due", f"since {self._changed_on(changed[0])} by {changed[0]}{more}")

    @functools.cache  # noqa: B019 - lives as long as the program
    def _changed_on(self, path: str) -> str:
        """The date of the last commit that changed a file."""
        git = ["git", "-C", str(self.root)]
        if subprocess.run([*git, "status", "--porcelain", "--", path], capture_output=True, check=False).stdout:
            self.uncommitted.add(path)
            return "now (not committed)"
        log = subprocess.run([*git, "log", "-1", "--format=%cs", "--", path], capture_output=True, text=True, check=False)
        return log.stdout.strip() or "unknown"

    def named(self, *states: str) -> list[str]:
        return [name for name, state in self.states.items() if state.name in states]

    @property
    def bad(self) -> list[str]:
        return self.named("never", "stale", "failed", "not_run")

    def seconds(self, names: list[str]) -> int:
        return sum(self.records[name].get("seconds", self.all[name]["budget"]) for name in names)


def check(proofs: Proofs, release: bool = False) -> int:
    """Print what does not hold and what is due, and how long it takes to run; 1 when that fails the check."""
    due = proofs.named("due")
    for name in due:
        print(f"proof {name} is due: {proofs.states[name].why}")
    for name in proofs.bad:
        print(f"proof {name} {proofs.states[name].why}; run `make proofs` ({proofs.seconds([name])} s)")
    print(f"{len(proofs.all) - len(proofs.bad)} of {len(proofs.all)} proofs hold; {len(due)} of these are due ({proofs.seconds(due)} s).")
    if proofs.bad:
        print(f"`make proofs` takes {proofs.seconds(proofs.bad)} s when nothing runs side by side.")
    if release and due:
        print("A release needs a checkout without due proofs: run `make proofs DUE=1`.")
    return 1 if proofs.bad or (release and due) else 0


def choose(proofs: Proofs, commit: str, seconds: int) -> list[str]:
    """Due proofs, then others that hold, in the order of a hash of commit and name, as many as fit into the time.

    None of Kubernetes: a machine without its programs builds them for many minutes, which no record knows.
    """
    chosen: list[str] = []
    for state in ("due", "holds"):
        for name in sorted(proofs.named(state), key=lambda name: hashlib.sha256(f"{commit}{name}".encode()).digest()):
            if proofs.all[name].get("lock") != "kubernetes" and proofs.seconds([*chosen, name]) <= seconds:
                chosen.append(name)
    return chosen


def run(proofs: Proofs, names: list[str], jobs: int, keep: bool) -> dict[str, dict[str, Any]]:
    """Run proofs and return their records, which are also written when `keep` says so."""
    results: dict[str, dict[str, Any]] = {}

    def ended(each: Running) -> None:
        name, record = each.proof["name"], each.result()
        results[name] = record
        if keep:
            proofs.write(name, record)
        log = each.log.relative_to(proofs.root)
        if record["result"] == "failed":
            print(f"---- the last lines of {log} ----")
            print("\n".join(each.log.read_text(errors="replace").splitlines()[-LINES:]))
            print(f"---- end of {log} ----")
        reason = f" ({record['reason']})" if "reason" in record else ""
        print(f"proof {name}: {record['result']}{reason} in {record['seconds']} s, output in {log}", flush=True)

    # The longest first, so that none is left alone at the end.
    order = sorted((proofs.all[name] for name in names), key=lambda proof: (proof.get("alone", False), -proofs.seconds([proof["name"]])))
    run_all(order, proofs.root, jobs, ended)
    return results


def rerun(proofs: Proofs, jobs: int, seconds: int) -> int:
    """Check, then run some proofs again without a record; 1 when one no longer holds."""
    if check(proofs):
        return 1
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=proofs.root, capture_output=True, text=True, check=False)
    names = choose(proofs, asked.stdout.strip(), seconds)
    print(f"Rerun {len(names)} of {len(proofs.all)} proofs, by the hash of the commit: {', '.join(names) or 'none'}", flush=True)
    results = {name: record["result"] for name, record in run(proofs, names, jobs, keep=False).items()}
    failed = [name for name in names if results[name] == "failed"]
    not_run = [name for name in names if results[name] == "not_run"]
    for name in failed:
        print(f"proof {name} no longer holds although its record says so: mend it, then run `make proofs NAMES={name}`")
    for name in not_run:
        print(f"not_run: proof {name}; something that it needs cannot be had here, see .cache/proofs/{name}.log")
    print(f"{len(names) - len(failed) - len(not_run)} of {len(names)} proofs still hold")
    return 1 if failed or (not_run and os.environ.get("CI") == "true") else 0


def table(proofs: Proofs, write: bool) -> int:
    """Write the table, or check all of it but the last column, which changes with commits that do not touch a record."""
    rows = ["| proof | about | result | date | seconds | due |", "| --- | --- | --- | --- | ---: | --- |"]
    for name, proof in proofs.all.items():
        record, state = proofs.records[name], proofs.states[name]
        due = {"due": state.why, "holds": "no"}.get(state.name, "stale")
        cells = [record.get(key, "") for key in ("result", "date", "seconds")] if record else ["never run", "", ""]
        rows.append(f"| {' | '.join(map(str, [name, proof['about'], *cells, due]))} |")
    page = proofs.root / "docs/support.md"
    text = page.read_text() if page.exists() else f"# What is supported\n\n## Proofs\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(f"{BEGIN}\n")
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/support.md: the lines {BEGIN} and {END} are missing; add them where the table of proofs shall be.")
    if write:
        page.parent.mkdir(exist_ok=True)
        page.write_text(before + begin + "\n".join(rows) + "\n" + end + after)
        if proofs.uncommitted:
            files = ", ".join(sorted(proofs.uncommitted))
            print(f'docs/support.md now says "now (not committed)" of {files}; commit that, then run `make docs` again.', file=sys.stderr)
        return 0
    if [row.split(" | ")[:-1] for row in old.splitlines()] != [row.split(" | ")[:-1] for row in rows]:
        print("docs/support.md: the table of proofs is not current; run `make docs`")
        return 1
    return 0


def main(argv: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    checking, running, rerunning, tabling = (actions.add_parser(name) for name in ("check", "run", "rerun", "table"))
    checking.add_argument("--release", action="store_true", help="fail when a proof is due")
    running.add_argument("names", nargs="*", help="proofs to run whatever their records say")
    running.add_argument("--due", action="store_true", help="run the due proofs as well")
    rerunning.add_argument("--seconds", type=int, default=600, help="how long the chosen proofs may take by their records")
    for each in (running, rerunning):
        each.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many proofs run side by side")
    tabling.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    proofs = Proofs(root)

    if options.action == "check":
        return check(proofs, options.release)
    if options.action == "rerun":
        return rerun(proofs, options.jobs, options.seconds)
    if options.action == "table":
        return table(proofs, options.write)
    for name in options.names:
        if name not in proofs.all:
            raise SystemExit(f"There is no proof {name}; there are: {', '.join(proofs.all) or 'none'}.")
    names = options.names or proofs.bad + (proofs.named("due") if options.due else [])
    for name in names:
        print(f"proof {name} {proofs.states[name].why or 'is named on the command line'}", flush=True)
    results = run(proofs, names, options.jobs, keep=True)
    if names:
        table(Proofs(root), write=True)
    return 1 if any(record["result"] != "passed" for record in results.values()) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("proofs: interrupted; the proofs that were running have no new record")
