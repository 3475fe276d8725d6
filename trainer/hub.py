# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Turns the errors of reading a model, a tokenizer or data into one sentence."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from trainer.cli import LocalError, TrainerError, UsageError


@contextlib.contextmanager
def hub_errors(what: str, offline: str = "") -> Iterator[None]:
    """Turn an error of reading `what` into one sentence; `offline` is the remedy that needs no hub, empty for local files."""
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        chain: list[Any] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
            chain.append(cause)
        names = [type(link).__name__ for link in chain]
        # `datasets` tries pandas where pyarrow fails, but pyarrow says where the fault is.
        told = next((link for link in chain if type(link).__module__.startswith("pyarrow")), chain[-1])
        reason = (str(told).splitlines() or ["nothing is in it"])[0][:200]
        unreadable = LocalError(f"{what} cannot be read ({type(told).__name__}: {reason}): correct or remove what is damaged")
        if not offline:
            raise unreadable from None
        status = next((link.response.status_code for link in chain if getattr(link, "response", None) is not None), None)
        text = str(error)
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        if status in (401, 403) or "GatedRepoError" in names or "gated dataset" in text:
            token = "HF_TOKEN has no access to it" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
            raise UsageError(
                f"{what} is gated, private or not there for this user, and {token}: accept its terms on the hub and set HF_TOKEN"
            ) from None
        if status == 404 or {"RepositoryNotFoundError", "DatasetNotFoundError", "EntryNotFoundError", "FileNotFoundError"} & set(names):
            raise UsageError(f"{what} is not on {endpoint}: correct its name, or {offline}") from None
        if isinstance(error, ValueError) and "BuilderConfig" in text:
            raise UsageError(f"{what}: {text.splitlines()[0]}: choose one with --dataset_config_name") from None
        if isinstance(error, OSError) or {"ConnectError", "ConnectTimeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled"} & set(names):
            raise LocalError(f"{what} cannot be read from {endpoint} ({names[-1]}): check the network, or {offline}") from None
        raise unreadable from None
