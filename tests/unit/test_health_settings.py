# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The settings of muster-health."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import settings

TODAY = datetime.date(2026, 11, 25)


def test_an_override_needs_an_owner_and_ends() -> None:
    row = {"check": "swap", "owner": "alice", "until": "2026-11-25", "reason": "ticket 7"}
    want, notes = settings.read(json.dumps({"schema": settings.SCHEMA, "off": [row]}), TODAY)
    assert (want["off"], notes) == ({"swap": row}, [])
    want, notes = settings.read(json.dumps({"schema": settings.SCHEMA, "off": [{**row, "until": "2026-11-24"}]}), TODAY)
    assert want["off"] == {}
    assert notes == ["the entry of swap in off ended on 2026-11-24 and no longer counts; its owner is alice"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "is not JSON"),
        ({"schema": "muster.health/2"}, "is not of schema muster.health/1"),
        ({"mount": []}, "unknown key mount; did you mean mounts?"),
        ({"mounts": "/fsx"}, "mounts is not of type list"),
        ({"dcgm_level": True}, "dcgm_level is not of type int"),
        ({"dcgm_level": 9}, "dcgm_level 9 is none of 1, 2, 3 and 4"),
        ({"limits": {"disk_procent": 1}}, "limits has the unknown key disk_procent; did you mean disk_percent?"),
        ({"drain": {"part": -1}}, "drain.part is not a number of at least 0"),
        ({"drain": {"requeue": "warning"}}, "drain.requeue warning is none of drain, reset, reboot, replace, never"),
        ({"allow_not_run": ["clok"]}, "which does not exist; did you mean clock?"),
        ({"xid_severity": {"94": "kill"}}, "xid_severity has 94: kill"),
        ({"off": [{"check": "swap", "until": "2026-12-01"}]}, "the entry of swap in off has no owner"),
        ({"off": [{"check": "swap", "owner": "a"}]}, "has no until"),
        ({"off": [{"check": "swap", "owner": "a", "until": "soon"}]}, "soon of swap is no day; write until as 2026-12-31"),
        ({"off": [{"check": "swop", "owner": "a", "until": "2026-12-01"}]}, "which does not exist; did you mean swap?"),
        ({"severity": [{"check": "swap", "owner": "a", "until": "2026-12-01"}]}, "has no severity"),
        ({"severity": [{"check": "swap", "owner": "a", "until": "2026-12-01", "severity": "kill"}]}, "kill is no severity of swap"),
    ],
)
def test_settings_that_cannot_be_are_refused(document: Any, words: str) -> None:
    text = document if isinstance(document, str) else json.dumps({"schema": settings.SCHEMA, **document})
    with pytest.raises(settings.SettingsError, match="health") as error:
        settings.read(text, TODAY)
    assert words in str(error.value)
    assert str(error.value).endswith((".", "?"))


def test_the_firmware_names_the_type_of_an_instance() -> None:
    want = settings.read("", TODAY)[0]
    assert settings.with_type(want, "p5.48xlarge")["type"]["gpus"] == 8
    assert settings.with_type(want, "Standard PC (Q35)")["type"] is None
    assert settings.with_type({**want, "instance_type": "c7i.large"}, "")["type"] is None
