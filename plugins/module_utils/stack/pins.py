# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's lock file, muster.pins/1: the fingerprints of keys for which only HTTPS vouches, as Muster first fetched them."""

from __future__ import annotations

import json

SCHEMA = "muster.pins/1"


class PinError(ValueError):
    """A key is refused, or the lock file cannot be read; the text is one sentence for the user."""


def parse(text, path):
    """{address of a key: {fingerprint, since}} of a lock file's text; an empty text has none."""
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PinError("The lock file %s is not JSON (%s); mend it, or restore it from your version control." % (path, error)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(document.get("keys"), dict):
        raise PinError("The lock file %s is not of schema %s; name another file in muster_lock_file." % (path, SCHEMA))
    return document["keys"]


def render(keys):
    return json.dumps({"schema": SCHEMA, "keys": keys}, indent=1, sort_keys=True) + "\n"


def pinned(keys, url, fingerprints, today, path):
    """The keys with the one at `url` pinned. Raises PinError when it has another fingerprint than before, or is not one key."""
    if len(fingerprints) != 1:
        raise PinError(
            "%s has %d keys and should have one, because only HTTPS vouches for it; name a fingerprint in the stack."
            % (url, len(fingerprints))
        )
    known = keys.get(url)
    if known is None:
        return {**keys, url: {"fingerprint": fingerprints[0], "since": today}}
    if known.get("fingerprint") != fingerprints[0]:
        raise PinError(
            "%s now gives the key %s, and %s pins %s since %s; ask its owner whether it changed, and if it did, remove its entry there."
            % (url, fingerprints[0], path, known.get("fingerprint"), known.get("since"))
        )
    return keys
