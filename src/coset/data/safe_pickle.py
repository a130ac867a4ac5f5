"""Reading CIFAR's pickles without letting them run code."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from coset.core.errors import DataError

# What a plain numpy array is rebuilt from. Strings, lists, dicts and integers need no name; every
# other name in a pickle is a call to code and is refused.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def parse(content: bytes, name: str) -> dict[bytes, Any]:
    """A pickled dict as Python 2 wrote it, with keys and strings as bytes; `name` is for the error."""
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    # Hostile bytes can raise nearly anything here, and all of it means the same.
    except Exception as error:
        raise DataError(f"{name} is not a plain pickle of arrays and was not loaded: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{name} holds a {type(value).__name__}, not a dict of arrays")
    return value
