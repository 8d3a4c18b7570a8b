"""Selects the backend that computes: native, or numpy if TRANSOM_NATIVE is 0."""

import os

from transom.errors import ConfigError
from transom.ops.protocol import Ops


def choose_ops(threads: int) -> Ops:
    """The backend, with `threads` threads if it is native.

    ConfigError if the extension cannot be loaded or TRANSOM_ISA names an instruction set that this CPU lacks.
    There is no silent fallback to numpy: it has the same bits but is far slower.
    """
    if os.environ.get("TRANSOM_NATIVE") == "0":
        from transom.ops.reference import ReferenceOps

        return ReferenceOps()
    try:
        from transom.ops.native import NativeOps
    except ImportError as error:
        if "TRANSOM_ISA" in str(error):
            raise ConfigError(str(error)) from error
        raise ConfigError(
            f"the native extension cannot be loaded ({error}); TRANSOM_NATIVE=0 runs, slowly, on numpy"
        ) from error
    return NativeOps(threads)
