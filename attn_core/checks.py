"""Checks of arguments at public entry points, with one grammar for the message.

Every message says which argument of which function, what it must be, what came, and what to do.
"""

from __future__ import annotations

from torch import Tensor


def check_ndim(tensor: Tensor, ndim: int, name: str) -> None:
    """Raise unless ``tensor`` has ``ndim`` axes.

    Args:
        name: "function: argument", as it stands in the message.
    Raises:
        TypeError: if it is no tensor.
        ValueError: if the number of axes differs.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor but is {type(tensor).__name__}; pass a tensor.")
    if tensor.ndim != ndim:
        raise ValueError(
            f"{name} must have {ndim} axes but has shape {tuple(tensor.shape)}; reshape it to {ndim} axes."
        )


def check_query_key_value(query: Tensor, key: Tensor, value: Tensor | None, function: str) -> None:
    """Raise unless query (B, H, Q, D), key (B, G, K, D) and value (B, G, K, E) belong together.

    Raises:
        TypeError: if one is no tensor, or their dtypes differ.
        ValueError: if a shape does not fit another's; H must be a multiple of G.
    """
    check_ndim(query, 4, f"{function}: query")
    check_ndim(key, 4, f"{function}: key")
    if query.dtype != key.dtype:
        raise TypeError(
            f"{function}: key must have query's dtype {query.dtype} but has {key.dtype}; cast one of them."
        )
    if query.shape[0] != key.shape[0]:
        raise ValueError(
            f"{function}: key must have query's batch size {query.shape[0]} but has {key.shape[0]}; "
            "pass the keys that belong to the same batch."
        )
    if query.shape[3] != key.shape[3]:
        raise ValueError(
            f"{function}: key must have query's width {query.shape[3]} but has {key.shape[3]}; "
            "project both to the same width."
        )
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{function}: query must have a multiple of key's {key.shape[1]} heads but has {query.shape[1]}; "
            "grouped attention needs whole groups."
        )
    if value is None:
        return
    check_ndim(value, 4, f"{function}: value")
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"{function}: value must have key's batch, heads and positions {tuple(key.shape[:3])} but has "
            f"{tuple(value.shape[:3])}; pass the value that belongs to the same keys."
        )


def check_index(index: int, size: int, name: str) -> int:
    """``index`` as a non-negative position, counting from the end when negative.

    Raises:
        IndexError: if it lies outside ``size``.
    """
    position = index + size if index < 0 else index
    if not 0 <= position < size:
        raise IndexError(f"{name} must be below {size} but is {index}; choose 0 to {size - 1}.")
    return position
