"""Where the bytes of experts come from: checkpoints as they lie on disk, tensors, buffers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strata.sources.files import File

if TYPE_CHECKING:
    from strata.sources.families import ExpertPattern
    from strata.sources.table import ExpertTable, PinReport

__all__ = ["ExpertPattern", "ExpertTable", "File", "PinReport", "gguf", "safetensors"]

_Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_Pattern = Mapping[str, str | Sequence[str]]


def safetensors(
    paths: _Paths,
    *,
    pattern: ExpertPattern | _Pattern | None = None,
    stack: str | None = None,
    transposed: bool | None = None,
    interleaved: bool | None = None,
    align: int = 256,
    uneven_experts: bool = False,
) -> ExpertTable:
    """Find the experts in safetensors files, without reading more than their headers.

    Parameters
    ----------
    paths : path, or iterable of paths
        A file; a folder with one file, or with an index (``model.safetensors.index.json``); an index; or the files.
    pattern : mapping or ExpertPattern, optional
        Names of one's own; see `ExpertPattern`. Default: the built-in families (``docs/sources.md`` lists them).
    stack : str, optional
        What comes before the layer's number in the names, where there are several stacks of layers (``"mtp.layers"``).
        Default: the one with the most layers.
    transposed : bool, optional
        How the kernels want the weights: [in, out] if True, [out, in] if False; a transformers module's
        ``is_transposed``. Default: as stored. What lies otherwise is converted into host memory when first needed, and
        logged.
    interleaved : bool, optional
        How the kernels want gate and up: alternately if True, one after the other if False; ``not is_concatenated``
        of a transformers module. Default: as stored.
    align : int, default 256
        Each tensor of a slot begins at a multiple of it.
    uneven_experts : bool, default False
        Layers may have different numbers of experts.

    Returns
    -------
    ExpertTable

    Raises
    ------
    CheckpointError
        A header, an index or a set of tensors that is not right, naming file and tensor; nothing stays open.
    OSError
        A file cannot be opened or read.
    TypeError, ValueError
        An argument of the wrong kind.
    """
    from strata.sources.safetensors_files import open_safetensors

    return _table(open_safetensors(paths), pattern=pattern, stack=stack, transposed=transposed, interleaved=interleaved,
                  align=align, uneven_experts=uneven_experts)


def gguf(
    paths: _Paths,
    *,
    pattern: ExpertPattern | _Pattern | None = None,
    stack: str | None = None,
    transposed: bool | None = None,
    interleaved: bool | None = None,
    align: int = 256,
    uneven_experts: bool = False,
) -> ExpertTable:
    """Find the experts in GGUF files, without reading more than their headers.

    Quantized tensors are raw bytes: a layout's dtype is the format's name (``"Q4_K"``), its shape counts blocks.

    Parameters
    ----------
    paths : path, or iterable of paths
        A file; any file of a split checkpoint (the others are found by their names); a folder with one checkpoint; or
        all files.
    pattern, stack, transposed, interleaved, align, uneven_experts
        As `safetensors`.

    Returns
    -------
    ExpertTable

    Raises
    ------
    CheckpointError, OSError, TypeError, ValueError
        As `safetensors`. Versions other than 2 and 3, and files for big-endian machines, are refused.
    """
    from strata.sources.gguf_files import open_gguf

    return _table(open_gguf(paths), pattern=pattern, stack=stack, transposed=transposed, interleaved=interleaved,
                  align=align, uneven_experts=uneven_experts)


def _table(opened: tuple[list[Any], list[Any]], **arguments: Any) -> ExpertTable:
    from strata.sources.table import build_table

    files, places = opened
    try:
        return build_table(files, places, **arguments)
    except BaseException:
        for file in files:
            file.close()
        raise


def __getattr__(name: str) -> Any:
    # Late, because lists of copies, which tables make, need this package's buffers first.
    if name == "ExpertPattern":
        from strata.sources.families import ExpertPattern

        return ExpertPattern
    if name in ("ExpertTable", "PinReport"):
        from strata.sources import table

        return getattr(table, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
