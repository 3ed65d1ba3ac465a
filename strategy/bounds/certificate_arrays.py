"""Certificate arrays: the numbers of a certificate as text, a gzipped safetensors document in base64."""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import CertificateError

Arrays = Mapping[str, npt.NDArray[Any]]
MOST_BYTES = 1 << 30
"""More than this unpacked is refused."""


def packed(arrays: Arrays) -> str:
    """The same text for the same arrays."""
    from safetensors.numpy import save

    return base64.b64encode(gzip.compress(save(dict(arrays)), compresslevel=6, mtime=0)).decode()


def unpacked(text: str, floats: Collection[str] = ()) -> Arrays:
    """The arrays of a text, those named of floating point, all others of whole numbers.

    Raises:
        CertificateError: it is not a whole one, or not of such arrays.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        unpacker = zlib.decompressobj(wbits=31)
        content = unpacker.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            raise CertificateError("not a whole certificate of a bound", where="certificate.arrays")
        arrays: Arrays = load(content)
    except (binascii.Error, zlib.error, SafetensorError) as error:
        raise CertificateError(f"not a certificate of a bound: {error}", where="certificate.arrays") from None
    for name, array in arrays.items():
        wanted = np.float64 if name in floats else np.int64
        if array.dtype != wanted or not np.isfinite(array).all():
            raise CertificateError("not a certificate of a bound", where=f"certificate.arrays: {name}")
    return arrays
