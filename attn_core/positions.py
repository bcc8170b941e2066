"""Where a token stands, said to attention: rotary embedding, linear biases and sinusoids.

Rotary embedding (Su et al. 2021, section 3.2) turns queries and keys so that their product depends on the distance
alone. ALiBi (Press et al. 2022, section 3) takes from each score in proportion to the distance. Sinusoidal positions
(Vaswani et al. 2017, section 3.5) are added to the tokens before the first layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_core.bias import RelativeBias
from attn_core.checks import check_ndim
from attn_core.functional import at_least_float32


def rotary(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    frequencies: Tensor | None = None,
) -> Tensor:
    """Queries or keys, each pair of channels turned by position · base^(−2i/D): Su et al. 2021, section 3.2.2.

    Angles are computed in float32, or in float64 for such an ``x``, as the models that were trained with them do.

    Args:
        x: (B, H, N, D), D even.
        positions: (N,), or (B, N) where items of a batch start at different places.
        interleaved: which channels make pair i: 2i and 2i + 1 (the paper, GPT-J), else i and i + D/2 (GPT-NeoX,
            Llama). A model works only with the pairing that it was trained with.
        frequencies: (D/2,) angle of each pair for one step, instead of base^(−2i/D) (Llama 3 has its own).
    Returns:
        (B, H, N, D) in the dtype of ``x``.
    Raises:
        TypeError, ValueError: if shapes do not belong together or D is odd.
    """
    check_ndim(x, 4, "rotary: x")
    batch, _, length, width = x.shape
    if tuple(positions.shape) not in ((length,), (batch, length)):
        raise ValueError(
            f"rotary: positions must be ({length},) or ({batch}, {length}) but are {tuple(positions.shape)}; "
            "pass the place of each token."
        )
    wide = at_least_float32(x)
    if frequencies is None:
        angles = _angles(positions, width, base, wide.dtype, "rotary: x")
    else:
        if tuple(frequencies.shape) != (width // 2,) or width % 2:
            raise ValueError(
                f"rotary: frequencies must be ({width // 2},) for x of width {width} but are "
                f"{tuple(frequencies.shape)}; pass one for each pair of channels."
            )
        angles = positions[..., None].to(wide.dtype) * frequencies.to(wide.dtype)
    angles = angles if positions.ndim == 1 else angles[:, None]  # (N, D/2) or (B, 1, N, D/2)
    cosine, sine = angles.cos(), angles.sin()
    halves = x.shape[:3] + ((width // 2, 2) if interleaved else (2, width // 2))
    pairs = wide.reshape(halves) if interleaved else wide.reshape(halves).mT  # (B, H, N, D/2, 2)
    first, second = pairs.unbind(-1)
    turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return (turned if interleaved else turned.mT).flatten(-2).to(x.dtype)


def alibi_slopes(heads: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """How much each head takes for one step of distance: Press et al. 2022, section 3.

    For a power of two these are 2^(−8/H), 2^(−16/H), …, 2^(−8). Else, as in the authors' program, the slopes of the
    next smaller power come first and every other slope of the next larger one fills up.

    Returns:
        (H,) positive numbers.
    Raises:
        ValueError: if ``heads`` is below 1.
    """
    if heads < 1:
        raise ValueError(
            f"alibi_slopes: heads must be at least 1 but is {heads}; pass the number of query heads."
        )
    power = 2 ** int(math.log2(heads))
    exponents = [-8 * (head + 1) / power for head in range(power)]
    exponents += [-4 * (2 * head + 1) / power for head in range(heads - power)]
    return torch.tensor(exponents, dtype=torch.float64).exp2().to(dtype)


def alibi_bias(
    heads: int,
    queries: int,
    keys: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> RelativeBias:
    """−slope · distance as a bias of scores, kept as a table of Q + K − 1 numbers a head.

    Press et al. 2022, section 3. The last query stands at the last key, as in a causal mask. The paper's models look
    back alone; here a key that comes after the query is charged for its distance alike, so that encoders are served.

    Returns:
        table (1, H, Q + K − 1); its ``dense()`` is (1, H, Q, K).
    Raises:
        ValueError: if ``heads`` is below 1.
    """
    slopes = alibi_slopes(heads, dtype=dtype).to(device)
    first, count = 1 - queries, max(queries + keys - 1, 0)
    distance = torch.arange(count, dtype=dtype, device=device) + (first - (keys - queries))
    rows, columns = (torch.arange(n, device=device) for n in (queries, keys))
    return RelativeBias((-slopes[:, None] * distance.abs())[None], rows, columns, first=first)


def sinusoidal_positions(
    positions: Tensor, width: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """sin and cos of position · base^(−2i/width) in channels 2i and 2i + 1: Vaswani et al. 2017, section 3.5.

    Args:
        positions: (N,), whole numbers or not.
        width: M, even.
    Returns:
        (N, M).
    Raises:
        TypeError, ValueError: if ``positions`` has not one axis or ``width`` is odd.
    """
    check_ndim(positions, 1, "sinusoidal_positions: positions")
    angles = _angles(
        positions, width, base, torch.promote_types(dtype, torch.float32), "sinusoidal_positions: width"
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype)


def _angles(positions: Tensor, width: int, base: float, dtype: torch.dtype, name: str) -> Tensor:
    """(..., N, width/2): position · base^(−2i/width)."""
    if width % 2:
        raise ValueError(
            f"{name} must have an even number of channels but has {width}; they are turned in pairs."
        )
    channels = torch.arange(0, width, 2, dtype=dtype, device=positions.device)
    # Divided as transformers divides: float32 rounds a negative power otherwise, which shows at far positions.
    frequencies = 1.0 / base ** (channels / max(width, 1))
    return positions[..., None].to(dtype) * frequencies
