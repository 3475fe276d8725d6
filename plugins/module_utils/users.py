# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of jobs, from a list in the inventory or from a directory: what cannot be, and whom the accounting database has yet to know."""

from __future__ import annotations

import os
import re

# Below lie the system's own users, whose numbers differ from node to node.
FIRST_UID = 1000
SCHEMES = ("ldap", "ldaps")
SYSTEM_CA = "system"


class UsersError(ValueError):
    """Users or a directory that cannot be; the text is one sentence for the user."""


def list_faults(users):
    """What is wrong with a list of {name, uid, account}, one sentence each."""
    faults: list = []
    names: dict = {}
    uids: dict = {}
    for user in users:
        name, uid = str(user["name"]), int(user["uid"])
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", name):
            faults.append("User '%s' of slurm_users cannot be a name on a node; use at most 31 lower-case letters, digits, - and _." % name)
        if uid < FIRST_UID:
            message = "User %s of slurm_users has the UID %d, which belongs to the system; give it one from %d up."
            faults.append(message % (name, uid, FIRST_UID))
        if name in names:
            faults.append("User %s stands twice in slurm_users; remove one of the two." % name)
        elif uid in uids:
            message = "Users %s and %s of slurm_users have one UID, %d; give each a UID of its own."
            faults.append(message % (uids[uid], name, uid))
        names.setdefault(name, uid)
        uids.setdefault(uid, name)
    return faults


def secret(reference, folder, environ):
    """The text that a reference file:PATH or env:NAME stands for, without the end of its line; a relative PATH lies in `folder`."""
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
        # Not the text itself: it may well be the secret.
        raise UsersError("A secret in the inventory is no reference; write file:PATH or env:NAME, never the secret itself.")
    text = text.rstrip("\r\n")
    if not text or "\n" in text:
        raise UsersError("The secret %s is not one line of text; write the secret alone into it." % reference)
    return text


def server_fault(uri):
    match = re.fullmatch(r"([a-z]+)://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]+)?/?", str(uri))
    if match and match.group(1) in SCHEMES:
        return ""
    return (
        "Directory server '%s' of users_servers is no address of one; write ldaps://HOST, or ldap://HOST, which begins with STARTTLS." % uri
    )


def directory_faults(options, folder, environ):
    """What is wrong with a directory, one sentence each. `options` are the variables users_* that a site has set, without their prefix."""
    if not options.get("servers"):
        given = sorted(name for name in ("base", "ca", "bind_dn", "groups") if options.get(name))
        message = "Variable users_%s describes a directory and users_servers names no server of it; give at least one, or remove both."
        return [message % given[0]] if given else []
    faults = [fault for fault in map(server_fault, options["servers"]) if fault]
    if not options.get("base"):
        faults.append("The directory in users_servers has no users_base; give the DN under which its users and groups lie.")
    if not options.get("groups"):
        faults.append("No group of the directory may log in; name at least one in users_groups, or everybody would stay outside.")
    for group in options.get("groups") or []:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", str(group["name"])):
            message = "Group '%s' of users_groups has a name that a node cannot use; take letters, digits, dots, dashes and underscores."
            faults.append(message % group["name"])
    repeated = sorted({group["name"] for group in options.get("groups") or [] if duplicated(options["groups"], group["name"])})
    if repeated:
        faults.append("Group %s stands twice in users_groups; its members can be charged to one account by it." % repeated[0])
    authority = options.get("ca")
    if not authority:
        message = "The directory in users_servers has no users_ca, and no server is trusted without; give the file of its CA, or system."
        faults.append(message)
    elif authority != SYSTEM_CA and not os.path.isfile(os.path.expanduser(str(authority))):
        faults.append("The CA file %s (users_ca) is not on this machine; give the path of a file in PEM here." % authority)
    if options.get("bind_dn"):
        try:
            secret(options.get("bind_secret") or "file:users-bind-password", folder, environ)
        except UsersError as error:
            faults.append("The directory is to be read as %s (users_bind_dn). %s" % (options["bind_dn"], error))
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
    """{account: users that it does not have yet}. rows: ACCOUNT|USER as sacctmgr prints them, without USER for the accounts themselves."""
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
