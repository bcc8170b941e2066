"""How well a query fits a key: the scoring functions of the literature, before mask and softmax.

Bahdanau et al. 2014 (section 3.1 and appendix A.1.2), Luong et al. 2015 (section 3.1), Vaswani et al. 2017 (section
3.2.1). Parameters are arguments, laid out as in ``torch.nn.Linear`` and shared by the heads; ``attn_core.modules``
learns them. Key heads may be fewer than query heads: head h reads group h // (H / G). A is the inner width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attn_core.checks import check_ndim, check_query_key_value
from attn_core.functional import attention_scores, repeat_groups, resolve_scale
from attn_core.strips import strip_rows


def additive_scores(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    vector: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """vector · tanh(query_weight · query + key_weight · key + bias): Bahdanau et al. 2014, appendix A.1.2.

    The (B, H, Q, K, A) array under the tanh never stands as a whole: it is made a strip of queries at a time, and
    made again for the gradient.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, E), G divides H.
        query_weight, key_weight: (A, D) and (A, E).
        vector: (A,).
        bias: (A,).
    Returns:
        (B, H, Q, K).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    name = "additive_scores"
    query = _projected(query, query_weight, f"{name}: query")  # (B, H, Q, A)
    key = _projected(key, key_weight, f"{name}: key")  # (B, G, K, A)
    check_query_key_value(query, key, None, name)
    _check_inner(vector, query, f"{name}: vector")
    if bias is not None:
        _check_inner(bias, query, f"{name}: bias")
        query = query + bias
    return _tanh_scores(query, key, vector)


def concat_scores(query: Tensor, key: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
    """vector · tanh(weight · [query; key]): "concat" of Luong et al. 2015, section 3.1.

    The product with the concatenation is a sum of two products, so these are additive scores without a bias, and
    they are computed as such.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, E), G divides H.
        weight: (A, D + E), the columns of the query first.
        vector: (A,).
    Returns:
        (B, H, Q, K).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    name = "concat_scores"
    check_ndim(query, 4, f"{name}: query")
    check_ndim(key, 4, f"{name}: key")
    check_ndim(weight, 2, f"{name}: weight")
    width = query.shape[3]
    if weight.shape[1] != width + key.shape[3]:
        raise ValueError(
            f"{name}: weight must have {width} + {key.shape[3]} columns, for query and key, but has shape "
            f"{tuple(weight.shape)}; lay it out as torch.nn.Linear does."
        )
    query = _projected(query, weight[:, :width], f"{name}: query")  # (B, H, Q, A)
    key = _projected(key, weight[:, width:], f"{name}: key")  # (B, G, K, A)
    check_query_key_value(query, key, None, name)
    _check_inner(vector, query, f"{name}: vector")
    return _tanh_scores(query, key, vector)


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """query · key: "dot" of Luong et al. 2015, section 3.1.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, D), G divides H.
    Returns:
        (B, H, Q, K).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, None, "dot_scores")
    return attention_scores(query, key, scale=1.0)


def general_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """query · weight · key: "general" of Luong et al. 2015, section 3.1.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, E), G divides H.
        weight: (D, E).
    Returns:
        (B, H, Q, K).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_ndim(weight, 2, "general_scores: weight")
    query = _projected(query, weight.T, "general_scores: query")  # (B, H, Q, E)
    check_query_key_value(query, key, None, "general_scores")
    return attention_scores(query, key, scale=1.0)


def scaled_dot_scores(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """query · key · scale: Vaswani et al. 2017, section 3.2.1.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, D), G divides H.
        scale: None = 1/√D.
    Returns:
        (B, H, Q, K).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, None, "scaled_dot_scores")
    return attention_scores(query, key, scale=resolve_scale(scale, query.shape[3]))


def _projected(tensor: Tensor, weight: Tensor, name: str) -> Tensor:
    """(B, H, N, D) by a weight (A, D) to (B, H, N, A)."""
    check_ndim(tensor, 4, name)
    check_ndim(weight, 2, f"{name}'s weight")
    if tensor.shape[3] != weight.shape[1]:
        raise ValueError(
            f"{name} must have the {weight.shape[1]} channels that its weight takes but has {tensor.shape[3]}; "
            "pass the weight that was made for this width."
        )
    _check_dtype(weight, tensor, f"{name}'s weight")
    return tensor @ weight.T


def _check_inner(numbers: Tensor, projected: Tensor, name: str) -> None:
    check_ndim(numbers, 1, name)
    width = projected.shape[3]
    if numbers.shape[0] != width:
        raise ValueError(
            f"{name} must hold {width} numbers, one for each row of the weights, but holds {numbers.shape[0]}; "
            "pass the one that belongs to these weights."
        )
    _check_dtype(numbers, projected, name)


def _check_dtype(parameter: Tensor, tensor: Tensor, name: str) -> None:
    if parameter.dtype != tensor.dtype:
        raise TypeError(f"{name} must have dtype {tensor.dtype} but has {parameter.dtype}; cast one of them.")


def _tanh_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """(B, H, Q, K): vector · tanh(query_i + key_j), in strips of queries."""
    batch, heads, _, width = query.shape
    key = repeat_groups(key, heads)
    strips = torch.split(query, strip_rows(batch * heads, key.shape[2] * width), dim=2)
    if len(strips) == 1:
        return _tanh_strip(query, key, vector)
    # Autograd would keep the tanh of every strip; a checkpoint makes them again, one at a time.
    parts = [
        checkpoint(_tanh_strip, strip, key, vector, use_reentrant=False, preserve_rng_state=False)
        for strip in strips
    ]
    return torch.cat(parts, dim=2)


def _tanh_strip(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return torch.tanh(query[:, :, :, None] + key[:, :, None]) @ vector  # (B, H, r, K, A) -> (B, H, r, K)
