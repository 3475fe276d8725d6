# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of one node and the check records (contract: component, level, check, status, expected, found, reason, remedy, seconds).

A probe that could not run, for example because its tool is missing or the host cannot have the feature, is `not_run` with the
reason, never `passed`. A probe that looked at a stand-in of a rehearsal is `not_run` as well; the key `rehearsed` of its record has what it
would have been, `passed` or `failed`.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
import time

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest, rehearsal

LEVELS = ("image", "node", "fleet")
KINDS = ("argv", "file", "manifest", "unit", "value")
FIELDS = {
    "argv": ("stdin", "user", "timeout", "rc", "equals", "matches", "retries", "not_run_when"),
    "file": ("mode", "owner", "group", "matches", "absent"),
    "manifest": (),
    "unit": ("active", "enabled", "retries"),
    "value": ("equals", "matches", "empty", "rehearsed"),
}
COMMON_FIELDS = ("check", "expected", "remedy", "not_run", "needs")
REINSTALL = "Run the install phase of role %s again; something removed or replaced what it had installed."
NEEDS = "it needs %s, which %s"
STOOD_IN = "it looked at a stand-in (%s) and would have %s"


class CheckError(ValueError):
    """A check is not well formed; the text is one sentence for the user."""


def validate(check):
    """Return the probe kind of one check, or raise CheckError with its fault."""
    name = check.get("check")
    if not name or not re.fullmatch(r"[a-z0-9_]+", str(name)):
        raise CheckError("A check has no name in lower case and underscores: %r." % (name,))
    kinds = [kind for kind in KINDS if kind in check]
    if len(kinds) != 1:
        raise CheckError("Check %s needs exactly one of %s, it has %s." % (name, ", ".join(KINDS), ", ".join(kinds) or "none"))
    unknown = sorted(set(check) - set(COMMON_FIELDS) - set(FIELDS[kinds[0]]) - {kinds[0]})
    if unknown:
        raise CheckError("Check %s has the unknown field %s for a probe of kind %s." % (name, unknown[0], kinds[0]))
    if not check.get("remedy") and kinds[0] != "manifest":
        raise CheckError("Check %s has no remedy: say what a person should do when it fails." % name)
    if "empty" in check and (not check["empty"] or "equals" in check or "matches" in check):
        raise CheckError("Check %s needs a text in empty, what an empty value means, and no equals or matches beside it." % name)
    cases = check.get("not_run_when") or {}
    if not isinstance(cases, dict) or not all(cases.values()):
        raise CheckError("Check %s has a not_run_when that is not a mapping of expressions to reasons." % name)
    return kinds[0]


def judge(found, check):
    """Compare text with a check's `equals` or `matches`: (ok, expected as text)."""
    if "equals" in check and check["equals"] is not None:
        return found == str(check["equals"]), str(check["equals"])
    if check.get("matches"):
        return re.search(str(check["matches"]), found, re.MULTILINE) is not None, "text matching %s" % check["matches"]
    return True, "success"


def outcome(status, found, reason="", expected=""):
    return {"status": status, "found": found, "reason": reason, "expected": expected}


def run_process(argv, stdin="", user=None, timeout=30):
    """Run argv, through runuser when a user is given: (rc, stdout, stderr). May raise OSError and TimeoutExpired."""
    if user:
        argv = ["runuser", "-u", user, "--"] + list(argv)
    done = subprocess.run(  # a failure of the probe goes into the record
        argv,
        input=stdin.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=timeout,
        check=False,
        cwd="/",
    )
    return done.returncode, done.stdout.decode(errors="replace").strip(), done.stderr.decode(errors="replace").strip()


def shorten(text, limit=400):
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def probe_argv(check, run):
    timeout = float(check.get("timeout") or 30)
    argv = [str(part) for part in check["argv"]]
    try:
        rc, out, err = run(argv, stdin=check.get("stdin") or "", user=check.get("user"), timeout=timeout)
    except FileNotFoundError as error:
        return outcome("not_run", "", "%s is not installed" % (error.filename or argv[0]))
    except subprocess.TimeoutExpired:
        return outcome("failed", "no answer in %g s" % timeout, "%s did not end within %g s" % (argv[0], timeout))
    want_rc = int(check.get("rc") or 0)
    ok, expected = judge(out, check)
    # An expression such as ^a*$ also matches nothing.
    ok = ok and bool(out or not (check.get("equals") or check.get("matches")))
    if rc != want_rc or not ok:
        # A reason why the probe could not look is not a result.
        for pattern, reason in (check.get("not_run_when") or {}).items():
            if re.search(str(pattern), out + "\n" + err):
                return outcome("not_run", shorten(out or err), str(reason), expected)
    if rc != want_rc:
        return outcome("failed", shorten(out or err), "%s ended with code %d: %s" % (argv[0], rc, shorten(err or out)), expected)
    if not ok:
        return outcome("failed", shorten(out), "%s printed something else: %s" % (argv[0], shorten(out, 200) or "nothing"), expected)
    return outcome("passed", shorten(out), "", expected)


def probe_file(check, _run):
    path = str(check["file"])
    if check.get("absent"):
        exists = os.path.lexists(path)
        return outcome("failed" if exists else "passed", "present" if exists else "absent", "%s exists" % path if exists else "", "absent")
    if not os.path.exists(path):
        return outcome("failed", "absent", "%s does not exist" % path, "present")
    info = os.stat(path)
    found = {
        "mode": "%04o" % (info.st_mode & 0o7777),
        "owner": _name(pwd.getpwuid, info.st_uid),
        "group": _name(grp.getgrgid, info.st_gid),
    }
    wanted = {key: str(check[key]) for key in found if check.get(key)}
    wrong = sorted(key for key, value in wanted.items() if found[key] != value)
    expected = ", ".join("%s %s" % item for item in wanted.items()) or "present"
    if wrong:
        return outcome("failed", ", ".join("%s %s" % (key, found[key]) for key in wrong), "%s has another %s" % (path, wrong[0]), expected)
    if check.get("matches"):
        ok, text = judge(read_text(path), {"matches": check["matches"]})
        if not ok:
            return outcome("failed", "no such text", "%s has no %s" % (path, text), text)
        expected = text
    return outcome("passed", expected, "", expected)


def _name(lookup, number):
    try:
        return lookup(number)[0]
    except KeyError:
        return str(number)


def probe_manifest(check, _run):
    """Compare the node with what the manifest says of a component."""
    try:
        known = manifest.parse(read_text(manifest.PATH, ""))["components"].get(str(check["manifest"]))
        installed = manifest.installed_packages(shutil.which) if known and known["packages"] else {}
    except manifest.ManifestError as error:
        return outcome("not_run", "", str(error))
    found = "; ".join(manifest.differences(known, None, os.path.exists, installed))
    if found:
        return outcome("failed", found, "the node differs from its manifest", "as recorded")
    return outcome("passed", "as recorded", "", "as recorded")


def probe_unit(check, run):
    unit = str(check["unit"])
    want = {"ActiveState": "active" if check.get("active", True) else "inactive"}
    # The path is for `stand_ins`.
    if check.get("enabled") is not None:
        want["UnitFileState"] = "enabled" if check["enabled"] else "disabled"
    try:
        rc, out, err = run(["systemctl", "show", "--property=LoadState,SubState,Result,FragmentPath," + ",".join(want), unit], timeout=30)
    except FileNotFoundError:
        return outcome("not_run", "", "systemctl is not installed")
    except subprocess.TimeoutExpired:
        return outcome("failed", "no answer in 30 s", "systemd does not answer")
    if rc != 0:
        return outcome("not_run", shorten(err or out), "systemd does not answer")
    have = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    expected = ", ".join(want.values())
    found = ", ".join(have.get(key, "") for key in want)
    if have.get("LoadState") == "not-found":
        return outcome("failed", "not found", "the unit %s does not exist" % unit, expected)
    if any(have.get(key) != value for key, value in want.items()):
        state = "%s (%s, result %s)" % (found, have.get("SubState", ""), have.get("Result", ""))
        return outcome("failed", state, "the unit %s is not %s" % (unit, expected), expected)
    return outcome("passed", found, "", expected)


def probe_value(check, _run):
    found = str(check["value"]).strip()
    if check.get("empty"):
        meaning = str(check["empty"])
        return outcome("failed" if found else "passed", shorten(found) or meaning, "the value differs" if found else "", meaning)
    ok, expected = judge(found, check)
    if not found:
        # Where two variables are empty, they are equal, and an expression such as ^a*$ also matches nothing.
        return outcome("failed", "", "the value is empty", expected or "a value that is not empty")
    return outcome("passed" if ok else "failed", shorten(found), "" if ok else "the value differs", expected)


PROBES = {"argv": probe_argv, "file": probe_file, "manifest": probe_manifest, "unit": probe_unit, "value": probe_value}


def probe(kind, check, run):
    try:
        return PROBES[kind](check, run)
    except OSError as error:
        return outcome("not_run", "", "%s cannot be read or run: %s" % (error.filename, error.strerror))


def stand_ins(kind, check, said, rehearsed):
    """The names of the stand-ins that a probe looked at. said: all that its commands printed. rehearsed: what the node rehearses."""
    if kind == "argv":
        return list(dict.fromkeys(rehearsal.named(said) + rehearsal.in_command(map(str, check["argv"]), rehearsed)))
    if kind == "file":
        path = str(check["file"])
        return [os.path.basename(path)] if rehearsal.is_device(path, rehearsed) else rehearsal.in_file(path)
    if kind == "unit":
        return [name for path in re.findall(r"^FragmentPath=(.+)$", said, re.MULTILINE) for name in rehearsal.in_file(path)]
    if kind == "manifest":
        known = manifest.parse(read_text(manifest.PATH, ""))["components"].get(str(check["manifest"])) or {}
        return rehearsal.of_entry(known)
    if check.get("rehearsed") is None:
        return ["perhaps, its value does not say where it comes from"] if rehearsed else []
    return list(check["rehearsed"])


def run_check(check, component, level, *, run=run_process, clock=time.monotonic, sleep=time.sleep, rehearsed=None):
    """Run one check and return its record. `retries` tries again after a second, for states that daemons reach a little later."""
    kind = validate(check)
    start = clock()
    said: list = []

    def heard(argv, **options):
        done = run(argv, **options)
        said.extend(done[1:])
        return done

    if check.get("not_run"):
        result = outcome("not_run", "", str(check["not_run"]))
    elif kind == "argv" and check.get("equals") == "":
        # A tool that fails behind a pipe prints nothing, too.
        result = outcome("not_run", "", "it expects that nothing is printed, which proves nothing")
    else:
        result = probe(kind, check, heard)
        for _try in range(int(check.get("retries") or 0)):
            if result["status"] != "failed":
                break
            sleep(1)
            result = probe(kind, check, heard)
    would = ""
    if result["status"] in ("passed", "failed"):
        names = stand_ins(kind, check, "\n".join(said), rehearsed or {})
        if names:
            would = result["status"]
            reason = STOOD_IN % (", ".join(names), would) + (": " + result["reason"] if result["reason"] else "")
            result = {**result, "status": "not_run", "reason": reason}
    return {
        "component": component,
        "level": level,
        "check": check["check"],
        "status": result["status"],
        "expected": str(check.get("expected") or result["expected"]),
        "found": result["found"],
        "reason": result["reason"],
        "remedy": str(check.get("remedy") or REINSTALL % check["manifest"]),
        "seconds": round(clock() - start, 3),
        **({"rehearsed": would} if would else {}),
    }


def run_checks(checks, component, level, **tools):
    """Run checks in order and return their records. A check that `needs` one that did not pass is not_run.

    What would have passed without a stand-in counts as passed here, so that a rehearsal goes on.
    """
    records: list = []
    for check in checks:
        not_run = check.get("not_run") or ""
        needs = check.get("needs") or []
        for name in [needs] if isinstance(needs, str) else needs:
            needed = [record.get("rehearsed") or record["status"] for record in records if record["check"] == name]
            if not needed:
                raise CheckError("Check %s needs %s, which is not a check before it." % (check["check"], name))
            if needed != ["passed"]:
                not_run = not_run or NEEDS % (name, "failed" if "failed" in needed else "could not run")
        records.append(run_check({**check, "not_run": not_run}, component, level, **tools))
    return records


def failing(records, allow_not_run=()):
    """The records that fail a host: failed ones, and not_run ones that `allow_not_run` (component.check) does not name.

    A name in `allow_not_run` also covers the checks that need the named one, and never one that would have failed without its stand-in.
    """

    def allowed(record):
        needed = re.fullmatch(re.escape(NEEDS) % (r"(\w+)", "could not run"), record["reason"])
        names = [record["check"]] + ([needed[1]] if needed else [])
        return any("%s.%s" % (record["component"], name) in allow_not_run for name in names)

    return [record for record in records if has_failed(record) or (record["status"] == "not_run" and not allowed(record))]


def has_failed(record):
    """Whether a record says that something is wrong with the node, or with the stand-ins that it rehearses with."""
    return "failed" in (record["status"], record.get("rehearsed"))


def sentence(record):
    """One line for a person: what failed, what was expected and found, and the remedy."""
    name = "%s.%s" % (record["component"], record["check"])
    if not has_failed(record):
        text = "%s could not run: %s. Remedy: %s To go on without it, name %s in muster_allow_not_run."
        return text % (name, record["reason"] or "no reason given", record["remedy"].rstrip(".") + ".", name)
    return "%s failed: %s (expected %s, found %s). Remedy: %s" % (
        name,
        record["reason"],
        record["expected"] or "success",
        record["found"] or "nothing",
        record["remedy"],
    )
