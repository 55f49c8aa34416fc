"""The backends that must agree: the one list that the tests are parametrised over."""

from __future__ import annotations

from typing import Any

import pytest

from acmo import native

Backend = dict[str, Any]

REFERENCE: Backend = {"foreach": False, "fused": False}
FOREACH: Backend = {"foreach": True}
FUSED: Backend = {"fused": True}

_needs_kernel = pytest.mark.skipif(native.kernel() is None, reason="the C kernel was not built: no fused backend")

BACKENDS = [
    pytest.param(REFERENCE, id="reference"),
    pytest.param(FOREACH, id="foreach"),
    pytest.param(FUSED, id="fused", marks=_needs_kernel),
]

every_backend = pytest.mark.parametrize("backend", BACKENDS)
