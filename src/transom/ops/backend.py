"""Which backend computes: the native one, or numpy where TRANSOM_NATIVE is 0."""

import os

from transom.errors import ConfigError
from transom.ops.protocol import Ops


def choose_ops(threads: int) -> Ops:
    """Raises ConfigError if the extension, or what TRANSOM_ISA names, is missing and numpy was not asked."""
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
