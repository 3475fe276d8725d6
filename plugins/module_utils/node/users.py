# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of jobs, from a list in the inventory or a directory: their faults, and the users that the accounting database lacks."""

from __future__ import annotations

import os
import re

# Lower UIDs belong to the system's own users and differ from node to node.
FIRST_UID = 1000
SCHEMES = ("ldap", "ldaps")
SYSTEM_CA = "system"


class UsersError(ValueError):
    """Users or a directory cannot be used; the text is one sentence for the user."""


def list_faults(users):
    """The faults of a list of {name, uid, account}, a sentence each."""
    faults: list = []
    names: dict = {}
    uids: dict = {}
    for user in users:
        name, uid = str(user["name"]), int(user["uid"])
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", name):
            faults.append(
                "User '%s' of slurm_users is not a valid name on a node; use at most 31 lower-case letters, digits, - and _." % name
            )
        if uid < FIRST_UID:
            message = "User %s of slurm_users has the UID %d, which belongs to the system; give it one from %d up."
            faults.append(message % (name, uid, FIRST_UID))
        if name in names:
            faults.append("User %s is in slurm_users twice; remove one of the two." % name)
        elif uid in uids:
            message = "Users %s and %s of slurm_users both have the UID %d; give each its own UID."
            faults.append(message % (uids[uid], name, uid))
        names.setdefault(name, uid)
        uids.setdefault(uid, name)
    return faults


def secret(reference, folder, environ):
    """The text to which a reference file:PATH or env:NAME points, without the newline; a relative PATH is below `folder`."""
    kind, _colon, what = str(reference).partition(":")
    if kind == "env" and what:
        if not environ.get(what):
            raise UsersError("The secret env:%s is not set; export the variable %s before you run the playbook." % (what, what))
        text = environ[what]
    elif kind == "file" and what:
        path = os.path.join(folder, os.path.expanduser(what))
        try:
            with open(path, encoding="utf-8") as handle:
                text = handle.read()
        except OSError as error:
            raise UsersError("The secret file:%s cannot be read (%s); put it into %s, mode 0600." % (what, error.strerror, path)) from error
    else:
        # Do not print the text itself, which may be the secret.
        raise UsersError("A secret in the inventory is not a reference; write file:PATH or env:NAME, never the secret itself.")
    text = text.rstrip("\r\n")
    if not text or "\n" in text:
        raise UsersError("The secret %s is not one line of text; write only the secret into it." % reference)
    return text


def server_fault(uri):
    match = re.fullmatch(r"([a-z]+)://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]+)?/?", str(uri))
    if match and match.group(1) in SCHEMES:
        return ""
    return (
        "Directory server '%s' of users_servers is not an address of one; write ldaps://HOST, or ldap://HOST, which begins with STARTTLS."
        % uri
    )


def directory_faults(options, folder, environ):
    """The faults of a directory, a sentence each. `options` are the variables users_* of a site, without their prefix."""
    if not options.get("servers"):
        given = sorted(name for name in ("base", "ca", "bind_dn", "groups") if options.get(name))
        message = (
            "Variable users_%s describes a directory and users_servers has no server; give at least one server, or remove the variable."
        )
        return [message % given[0]] if given else []
    faults = [fault for fault in map(server_fault, options["servers"]) if fault]
    if not options.get("base"):
        faults.append("The directory in users_servers has no users_base; give the DN of the subtree with its users and groups.")
    if not options.get("groups"):
        faults.append("No group of the directory may log in; give at least one in users_groups, or nobody can log in.")
    for group in options.get("groups") or []:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", str(group["name"])):
            message = "Group '%s' of users_groups has a name that a node cannot use; use letters, digits, dots, dashes and underscores."
            faults.append(message % group["name"])
    repeated = sorted({group["name"] for group in options.get("groups") or [] if duplicated(options["groups"], group["name"])})
    if repeated:
        faults.append("Group %s is in users_groups twice; remove one of the two, because a group charges one account." % repeated[0])
    authority = options.get("ca")
    if not authority:
        message = "The directory in users_servers has no users_ca, without which no server is trusted; give the file of its CA, or system."
        faults.append(message)
    elif authority != SYSTEM_CA and not os.path.isfile(os.path.expanduser(str(authority))):
        faults.append("The CA file %s (users_ca) is not on this machine; give the path of a file in PEM here." % authority)
    if options.get("bind_dn"):
        try:
            secret(options.get("bind_secret") or "file:users-bind-password", folder, environ)
        except UsersError as error:
            faults.append("The directory needs the secret of %s (users_bind_dn). %s" % (options["bind_dn"], error))
    return faults


def duplicated(groups, name):
    return len([group for group in groups if group["name"] == name]) > 1


def accounts_of(groups, members):
    """{user: its accounts in the order of `groups`}. groups: [{name, account}]; members: {group: names}."""
    accounts: dict = {}
    for group in groups:
        for name in members[group["name"]]:
            mine = accounts.setdefault(name, [])
            if group["account"] not in mine:
                mine.append(group["account"])
    return accounts


def missing_associations(accounts, rows):
    """{account: users that it lacks}. rows: ACCOUNT|USER as sacctmgr prints them; the rows of accounts themselves have no USER."""
    known = {tuple(row.split("|")[:2]) for row in rows if "|" in row}
    missing: dict = {}
    for user, mine in sorted(accounts.items()):
        for account in mine:
            if (account, "") not in known:
                message = "The account %s (users_groups) is not in the accounting database; add it to slurm_accounts."
                raise UsersError(message % account)
            if (account, user) not in known:
                missing.setdefault(account, []).append(user)
    return missing
