# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slow tests that are run by hand, and the record that they were.

tests/proofs.json holds a list of proofs: `name`, `inputs` (globs below the checkout, as git understands them; `@name` stands for those of
`shared`), `command` (argv), and what the last run left: `inputs_sha256`, `date`, `seconds`, `result` (passed, failed, or not_run when its
command ended with 75, which says that something it needs cannot be had here, such as an archive). The inputs are what the proof is about;
what it merely runs on, such as the playbook that configures its fleet, is tested by every `make test`.

    proofs.py run [NAME…]   runs those whose inputs changed or that did not pass, or the named ones
    proofs.py check         exits 1 and names the proofs that would be run
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/proofs.json"
NOT_RUN = 75  # EX_TEMPFAIL of sysexits.h


def inputs_sha256(inputs: list[str], root: Path) -> str:
    """Hash of names, modes and contents of what the globs match and git does not ignore; SystemExit when a glob matches none."""
    digest = hashlib.sha256()
    for pattern in sorted(inputs):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f":(glob){pattern}"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        files = sorted({name for name in listed if (root / name).is_file()})
        if not files:
            raise SystemExit(f"tests/proofs.json: no file matches the input {pattern}; correct the glob.")
        for name in files:
            content = hashlib.sha256((root / name).read_bytes()).hexdigest()
            digest.update(f"{name} {(root / name).stat().st_mode & 0o111:o} {content}\n".encode())
    return digest.hexdigest()


def expand(document: dict[str, Any], proof: dict[str, Any]) -> list[str]:
    """The globs of a proof, with those that it shares with others."""
    shared = document.get("shared", {})
    return [glob for each in proof["inputs"] for glob in (shared[each[1:]] if each.startswith("@") else [each])]


def why_stale(proof: dict[str, Any], now: str) -> str:
    """The reason to run a proof whose inputs hash to `now`; empty when its record holds."""
    if "inputs_sha256" not in proof:
        return "was never run"
    if proof["inputs_sha256"] != now:
        return f"is older than its inputs, run on {proof['date']}"
    if proof["result"] == "not_run":
        return f"could not be run on {proof['date']}"
    if proof["result"] != "passed":
        return f"failed on {proof['date']}"
    return ""


def run(proof: dict[str, Any], inputs: list[str], root: Path) -> None:
    """Run a proof's command from `root` and write what came of it into `proof`."""
    started = time.time()
    # Taken before, so that a file changed meanwhile makes the proof stale.
    now = inputs_sha256(inputs, root)
    code = subprocess.run(proof["command"], cwd=root, check=False).returncode
    proof["inputs_sha256"] = now
    proof["date"] = time.strftime("%Y-%m-%d", time.gmtime(started))
    proof["seconds"] = round(time.time() - started)
    proof["result"] = {0: "passed", NOT_RUN: "not_run"}.get(code, "failed")


def main(argv: list[str], record: Path = RECORD, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["run", "check"])
    parser.add_argument("names", nargs="*", help="proofs to run whether or not their inputs changed")
    options = parser.parse_args(argv)
    document = json.loads(record.read_text())
    proofs = {proof["name"]: proof for proof in document["proofs"]}
    for name in options.names:
        if name not in proofs:
            raise SystemExit(f"There is no proof {name}; there are: {', '.join(proofs) or 'none'}.")
    stale = {name: why for name, proof in proofs.items() if (why := why_stale(proof, inputs_sha256(expand(document, proof), root)))}

    if options.action == "check":
        for name, why in stale.items():
            print(f"proof {name} {why}; run `make proofs`")
        print(f"{len(proofs) - len(stale)} of {len(proofs)} proofs hold")
        return 1 if stale else 0

    chosen = options.names or list(stale)
    for name in chosen:
        print(f"proof {name} {stale.get(name, 'was asked for')}", flush=True)
        run(proofs[name], expand(document, proofs[name]), root)
        print(f"proof {name}: {proofs[name]['result']} in {proofs[name]['seconds']} s", flush=True)
        record.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(proofs[name]["result"] != "passed" for name in chosen) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
