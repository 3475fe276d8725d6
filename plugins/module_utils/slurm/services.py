# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the services beside one slurmctld: a second slurmctld, a database elsewhere, and slurmrestd. Runs on the Ansible controller."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.slurm.conf import SlurmConfError

PASSWORD_FILE = "slurm_database_password"


def value_of(config, key, default=""):
    """A key of slurm.conf as a site spells it."""
    return next((value for name, value in config.items() if name.lower() == key.lower()), default)


def check_controllers(controllers, config, database):
    """SlurmConfError when these controllers could not take over from each other."""
    state = str(value_of(config, "StateSaveLocation"))
    if len(controllers) > 1 and not state.startswith("/"):
        message = (
            "The controllers %s need one folder for their state; name one that all of them mount: "
            "slurm_config: {StateSaveLocation: /fsx/slurm/state}."
        )
        raise SlurmConfError(message % " and ".join(controllers))
    backup = value_of(config, "AccountingStorageBackupHost")
    if backup and not database:
        message = (
            "AccountingStorageBackupHost %s could not reach the database, which listens on %s alone; put it elsewhere with slurm_database."
        )
        raise SlurmConfError(message % (backup, controllers[0]))


def check_rest(rest):
    """SlurmConfError when slurmrestd could not listen there."""
    listen = str(rest.get("listen") or "")
    if rest and not re.fullmatch(r"unix:/\S+|[^\s:/]+:\d+|\[[0-9a-fA-F:]+\]:\d+", listen):
        message = "slurm_rest.listen is %r; give unix:/run/slurmrestd/slurmrestd.socket or ADDRESS:PORT such as 127.0.0.1:6820."
        raise SlurmConfError(message % listen)


def check_password(database, secrets, environ):
    """SlurmConfError when slurm_database has no password, or one that slurmdbd.conf cannot hold."""
    name = database.get("password_env")
    path = Path(str(secrets)) / PASSWORD_FILE
    if name:
        found, where = environ.get(name, ""), "the environment variable %s" % name
    else:
        found, where = (path.read_text(encoding="utf-8").strip() if path.is_file() else ""), str(path)
    if not found:
        message = "slurm_database names the host %s, but %s holds no password; write it there%s."
        raise SlurmConfError(
            message % (database["host"], where, "" if name else " with mode 0600, or name a variable in slurm_database.password_env")
        )
    if re.search(r"[\s#\"'\\=]", found):
        raise SlurmConfError(
            "The password in %s has a character that slurmdbd.conf cannot hold (blank, quote, #, = or backslash); change it." % where
        )


def check_database(database, secrets, environ):
    """SlurmConfError when slurmdbd could not reach this database."""
    if not database:
        return
    if not database.get("host"):
        raise SlurmConfError(
            "slurm_database has no host; name the database server, or remove slurm_database for a database on the controller."
        )
    if database.get("tls", True) and not database.get("ca"):
        message = "slurm_database wants TLS to %s without a CA to know it by; name its file in slurm_database.ca, or say tls: false."
        raise SlurmConfError(message % database["host"])
    if bool(database.get("cert")) != bool(database.get("key")):
        raise SlurmConfError("slurm_database has only one of cert and key; give both or none.")
    for part in ("ca", "cert", "key"):
        if database.get(part) and not os.path.isfile(str(database[part])):
            raise SlurmConfError("The file %s of slurm_database.%s is not there; correct the path." % (database[part], part))
    check_password(database, secrets, environ)


def faults(controllers, config, database, rest, *, secrets, environ):
    """A sentence for each check that fails; it reads the password and does not keep it."""
    found = []
    for check, values in (
        (check_controllers, (controllers, config, database)),
        (check_database, (database, secrets, environ)),
        (check_rest, (rest,)),
    ):
        try:
            check(*values)
        except SlurmConfError as error:
            found.append(str(error))
    return found
