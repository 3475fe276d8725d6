# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fixture that runs a module as Ansible does."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from ansible.module_utils.testing import patch_module_args


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict]:
    """Run a module as Ansible does, with its result as JSON: call(module, option=value, check_mode=True)."""
    remote_tmp = str(tmp_path_factory.mktemp("remote"))

    def run(module: ModuleType, check_mode: bool = False, **options: object) -> dict:
        internal = {"_ansible_check_mode": check_mode, "_ansible_diff": True, "_ansible_remote_tmp": remote_tmp}
        # pytest removes the folder; the module would try it again when Python ends.
        internal["_ansible_keep_remote_files"] = True
        with patch_module_args({**options, **internal}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run
