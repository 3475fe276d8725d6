# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""How moto is changed in place: its functions are replaced by wrappers, which call the machines and faults of this process's cloud.

moto has no hooks for this, so each wrapper gets the former function as its first argument.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

# The machines, faults and sessions of this process's cloud.
CLOUD: dict[str, Any] = {}


def wrapped(owner: type, name: str, wrapper: Callable) -> None:
    """Replace a function by a wrapper, which gets the former function as its first argument."""
    former = getattr(owner, name)

    @functools.wraps(former)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(former, *args, **kwargs)

    setattr(owner, name, call)


def kept(backend: Any, what: str) -> dict[str, dict[str, Any]]:
    """Our objects in a region's backend, which moto's reset deletes with its own."""
    return backend.__dict__.setdefault(f"_localcloud_{what}", {})


def made_id(prefix: str, *of: object) -> str:
    """An id of AWS's form that is the same for the same values."""
    return f"{prefix}-{hashlib.sha256(repr(of).encode()).hexdigest()[:17]}"
