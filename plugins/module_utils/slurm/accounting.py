# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sacctmgr holds (QOS, accounts, associations, users), what it should hold, and the commands for the difference.

Read from `sacctmgr --noheader --parsable2 show ...`, whose fields have the names of the options that set them.
"""

from __future__ import annotations

import re

# Options of the account itself. Its other options belong to its association with the cluster.
ACCOUNT_KEYS = ("Description", "Organization")
SETS = ("qos", "qoslevel", "flags", "preempt", "preemptmode")
CLEAR = "-1"


class SlurmAccountingError(ValueError):
    """Data that the accounting database cannot hold; the text is one sentence for the user."""


def order(accounts):
    """Accounts with each parent before its children; raises SlurmAccountingError for a circle."""
    by_name = {account["name"]: account for account in accounts}
    done: dict = {}

    def visit(account, above):
        name = account["name"]
        if name in above:
            raise SlurmAccountingError(
                "The account %s is its own parent (%s); give one of them another parent." % (name, " - ".join([*above, name]))
            )
        if name not in done:
            if parent_of(account) in by_name:
                visit(by_name[parent_of(account)], [*above, name])
            done[name] = account

    for account in accounts:
        visit(account, [])
    return list(done.values())


def parent_of(account):
    return account.get("parent") or "root"


def associations(user):
    """A user's associations, the one of the default account first."""
    first = {"account": user["account"], "partition": "", "params": user.get("params") or {}}
    return [first] + [{"partition": "", **more, "params": more.get("params") or {}} for more in user.get("associations") or []]


def keys(objects):
    """The option names that these entries set, each once, in the spelling that comes first."""
    found: dict = {}
    for each in objects:
        for key in each.get("params") or {}:
            found.setdefault(key.lower(), key)
    return list(found.values())


def minutes(text):
    """A time limit in Slurm's notations -> seconds as text: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        return text
    days, first, second, third = match.groups()
    numbers = [int(number or 0) for number in (first, second, third)]
    if days is not None or third is not None:
        hours, mins, secs = numbers
    else:
        hours, mins, secs = 0, numbers[0], numbers[1]
    return str(((int(days or 0) * 24 + hours) * 60 + mins) * 60 + secs)


def tres(text):
    """`mem=100G,cpu=4` -> {cpu: 4, mem: 102400}; -1 means no limit and is left out."""
    found = {}
    for part in text.split(","):
        name, _equals, value = part.strip().partition("=")
        size = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtp])b?", value.strip().lower())
        if size:
            value = "%g" % (float(size[1]) * 1024.0 ** ("kmgtp".index(size[2]) - 1))
        if name and value.strip() != CLEAR:
            found[name.lower()] = value.strip()
    return found


def plain(value):
    """A value of the inventory as text for sacctmgr: lists and mappings joined by commas."""
    if isinstance(value, dict):
        return ",".join("%s=%s" % item for item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


def same_form(key, text):
    """The normal form of a value, which is the same for all its spellings."""
    name, text = key.lower(), text.strip()
    if text == CLEAR:
        text = ""
    if "tres" in name:
        return tres(text)
    if name in SETS:
        return {part.strip().lower() for part in text.split(",") if part.strip()}
    if "wall" in name:
        return minutes(text) if text else ""
    if name == "gracetime":
        return str(int(text)) if text.isdigit() else minutes(text)
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return "%g" % float(text)
    return text.lower()


def setting(key, text, have=""):
    """`Key=Value` that sets a value and removes the parts of the old one that sacctmgr would keep."""
    if "tres" in key.lower():
        gone = sorted(set(tres(have)) - set(tres(text)))
        text = ",".join([part for part in [text if text != CLEAR else ""] if part] + ["%s=-1" % name for name in gone])
    elif text == "":
        # An empty text clears a list, -1 a number.
        text = "" if key.lower() in SETS and key.lower() != "flags" else CLEAR
    return "%s=%s" % (key, text)


def differing(params, have):
    """{key: (have, want)} of the options that are not as wanted. have: {key in lower case: text}."""
    changes = {}
    for key, value in params.items():
        text = plain(value)
        if same_form(key, text) != same_form(key, have.get(key.lower(), "")):
            changes[key] = (have.get(key.lower(), ""), text)
    return changes


def rows(text, fields):
    """Lines of --parsable2 -> [{field in lower case: value}]."""
    return [dict(zip((field.lower() for field in fields), line.split("|"))) for line in text.splitlines() if line.strip()]


class Plan:
    """The commands for the difference, and their changes as text for a diff."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.commands: list = []
        self.before: list = []
        self.after: list = []

    def add(self, what, kind, words, params):
        self.commands.append(
            ["sacctmgr", "--immediate", "add", kind] + words + [setting(key, plain(value)) for key, value in params.items()]
        )
        self.after.append(" ".join([what] + ["%s=%s" % (key, plain(value)) for key, value in params.items()]))

    def modify(self, what, kind, where, changes):
        if changes:
            sets = [setting(key, want, have) for key, (have, want) in changes.items()]
            self.commands.append(["sacctmgr", "--immediate", "modify", kind, "where"] + where + ["set"] + sets)
            self.before.append(" ".join([what] + ["%s=%s" % (key, have) for key, (have, _want) in changes.items()]))
            self.after.append(" ".join([what] + ["%s=%s" % (key, want) for key, (_have, want) in changes.items()]))


def plan(cluster, qos, accounts, users, have):
    """Plan the commands that turn what the database has into what is wanted.

    have: {clusters: [name], qos: rows, accounts: rows, associations: rows, users: rows}. An entry that the inventory does not name stays.
    """
    todo = Plan(cluster)
    where = "cluster=%s" % cluster
    if cluster not in have["clusters"]:
        todo.add("cluster %s" % cluster, "cluster", [cluster], {})
    there = {row["name"]: row for row in have["qos"]}
    # A QOS may preempt a later one, so add all names first and then set their options.
    for each in qos:
        if each["name"] not in there:
            todo.add("qos %s" % each["name"], "qos", [each["name"]], {})
    for each in qos:
        todo.modify(
            "qos %s" % each["name"], "qos", ["name=%s" % each["name"]], differing(each.get("params") or {}, there.get(each["name"], {}))
        )

    tree = {row["account"]: row for row in have["associations"] if not row["user"]}
    described = {row["account"]: row for row in have["accounts"]}
    for account in order(accounts):
        name, params = account["name"], dict(account.get("params") or {})
        own = {key: account[key.lower()] for key in ACCOUNT_KEYS if account.get(key.lower())}
        if name not in tree:
            todo.add("account %s" % name, "account", [name, where, "parent=%s" % parent_of(account)], {**own, **params})
            continue
        changes = differing(own, described.get(name, {}))
        if tree[name]["parentname"] != parent_of(account):
            changes["Parent"] = (tree[name]["parentname"], parent_of(account))
        changes.update(differing(params, tree[name]))
        todo.modify("account %s" % name, "account", ["name=%s" % name, where], changes)

    linked = {(row["user"], row["account"], row["partition"]): row for row in have["associations"] if row["user"]}
    known = {row["user"]: row for row in have["users"]}
    for user in users:
        name = user["name"]
        for number, link in enumerate(associations(user)):
            words = ["account=%s" % link["account"], where] + (["partition=%s" % link["partition"]] if link["partition"] else [])
            what = " ".join(["user %s" % name] + words)
            row = linked.get((name, link["account"], link["partition"]))
            if row is None:
                admin = {"AdminLevel": user["admin_level"]} if user.get("admin_level") and name not in known and number == 0 else {}
                todo.add(what, "user", [name] + words, {**admin, **link["params"]})
            else:
                todo.modify(what, "user", ["name=%s" % name] + words, differing(link["params"], row))
        if name in known:
            own = {"AdminLevel": user["admin_level"]} if user.get("admin_level") else {}
            changes = differing(own, known[name])
            if known[name]["defaultaccount"] != user["account"]:
                changes["DefaultAccount"] = (known[name]["defaultaccount"], user["account"])
            # These options belong to the user and not to an association, so the command names no account or partition.
            todo.modify("user %s" % name, "user", ["name=%s" % name] + ([where] if "DefaultAccount" in changes else []), changes)
    return todo


def left_alone(qos, accounts, users, have):
    """Entries of the database that the inventory does not name, as text, without Slurm's own."""
    named = {each["name"] for each in accounts} | {"root"}
    people = {each["name"] for each in users} | {"root"}
    linked = {(user["name"], link["account"], link["partition"]) for user in users for link in associations(user)}
    found = ["qos %s" % row["name"] for row in have["qos"] if row["name"] not in {each["name"] for each in qos} | {"normal"}]
    found += ["account %s" % row["account"] for row in have["associations"] if not row["user"] and row["account"] not in named]
    for row in have["associations"]:
        if row["user"] and row["user"] != "root" and (row["user"], row["account"], row["partition"]) not in linked:
            detail = " in account %s" % row["account"] + (" and partition %s" % row["partition"] if row["partition"] else "")
            found.append("user %s%s" % (row["user"], detail if row["user"] in people else ""))
    return list(dict.fromkeys(found))
