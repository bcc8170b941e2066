"""Text or a picture as a model takes it, and how its positions map back to characters or patches.

Everything that an encoding changes (truncation, replaced characters, resizing) is done here, before the model runs,
and told in ``Inputs.notes``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis import resizing
from analysis.decoder_input import Target, decoder_target
from analysis.figure_data import LEARNED_QUERY, TokenLabel
from analysis.hf.families import RECURRENT, pads_to_whole_patches
from analysis.hf.windows import windowed_layers
from analysis.images import Picture
from analysis.models import LoadedModel
from analysis.token_labels import Labelled, Span, label_tokens, text_direction
from analysis.tokenising import Tokens, check_tokens, clean, cut, limit_of, model_fields, takes, tokenised
from attn_core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from analysis.reading import Reading

SHORTER_SIDE = 224
"""Shorter side of a picture, in pixels, for models that take any size."""

MOST_PATCHES, MOST_PATCHES_ASKED = 1024, 22_500
"""Most patches of a picture by default, and when ``side`` is given."""

LONGEST_OWN_SIDE = 2048
"""Longer side, in pixels, up to which a picture is taken at its own size."""

MOST_PATCHES_IN_WINDOWS = 32_768
"""The same for models that attend inside windows, whose cost grows with the patches and not with their square."""

# Families without absolute positions, or that count them from the mask or from the padding index by themselves.
_POSITIONS_FROM_MASK = frozenset(
    {"t5", "mt5", "umt5", "longt5", "bloom", "opt", "roberta", "xlm-roberta", "camembert"}
)


PictureSide = int | Literal["own"] | None
"""Shorter side in pixels; the picture's own size; or what the model takes by default."""


@dataclass(frozen=True)
class PatchGrid:
    """Patches of a picture, as a model first cuts it or as a later layer holds them.

    Attributes:
        rows, columns: how many there are down and across.
        patch: side of a patch in pixels.
        height, width: of the picture that they cover, in pixels; after merges of an odd number they reach beyond it.
        prefix_tokens: positions before the first patch (CLS, distillation, registers).
    """

    rows: int
    columns: int
    patch: int
    height: int
    width: int
    prefix_tokens: int


@dataclass(frozen=True, eq=False)
class Inputs:
    """What goes into a model.

    Attributes:
        tensors: keyword arguments of the model's forward, batch of one, on the model's device.
        tokens: labels of the encoder's, or the only stack's, positions; None for a picture.
        target_tokens: labels of the decoder's positions of an encoder-decoder, or of a learned query.
        grid: patches of a picture, None for text.
        picture: (H, W, 3) uint8, exactly the part of the picture that the patches cover, as the model saw it.
        source: the text as typed, or the picture's name and digest.
        digest: SHA-256 of all that goes in; equal digests give equal results on the same model.
        notes: what was changed on the way.
        total_tokens, kept_tokens: positions of the whole input, and of what is kept of it.
        direction: reading direction of the text.
        spans: (start, end) of each token in the text of its segment as typed; None for a token that the tokenizer
            added. None altogether for a picture and where the tokenizer's offsets cannot be trusted.
        reading: how a text that is longer than the model takes is read in windows; None where it goes in at once.
    """

    tensors: Mapping[str, Tensor]
    tokens: tuple[TokenLabel, ...] | None
    target_tokens: tuple[TokenLabel, ...] | None
    grid: PatchGrid | None
    picture: NDArray[np.uint8] | None
    source: str
    digest: str
    notes: tuple[str, ...]
    total_tokens: int
    kept_tokens: int
    direction: Literal["ltr", "rtl"] = "ltr"
    spans: tuple[Span | None, ...] | None = None
    reading: Reading | None = None


# Text ------------------------------------------------------------------------------------------------------------


def encode_text(
    model: LoadedModel, text: str, *, target: str | None = None, max_tokens: int | None = None
) -> Inputs:
    """One text, as ``model`` takes it.

    A text that is too long is cut at its end, and the note tells how much. An encoder-decoder also gets its decoder's
    tokens: those of ``target``, shifted right behind the model's own start token; without ``target`` those that the
    model writes itself (greedy, at most 64), or the start token alone when it has no language-model head.

    Args:
        model: a text model.
        text: as typed; it may be empty where the tokenizer adds tokens of its own.
        target: what the decoder of an encoder-decoder reads.
        max_tokens: keep fewer tokens than the model could take; special tokens count.
    Raises:
        ValueError: if no token is left, or an argument does not fit the model.
        UnsupportedModelError: if the model has no tokenizer or takes no text.
    """
    return _encode(model, (text,), "encode_text", target=target, max_tokens=max_tokens)


def encode_pair(model: LoadedModel, a: str, b: str, *, max_tokens: int | None = None) -> Inputs:
    """A sentence pair, as ``model`` takes it; the longer sentence is cut first.

    Segments follow BertViz: everything before the first token of ``b``, the first separator included, belongs to A.

    Raises:
        ValueError, UnsupportedModelError: as ``encode_text``.
    """
    return _encode(model, (a, b), "encode_pair", target=None, max_tokens=max_tokens)


def encode_texts(
    model: LoadedModel, texts: Sequence[str], *, padding_side: Literal["left", "right"] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """A padded batch of texts, each cut to what the model takes, and which positions are real.

    Left padding gets position ids that count real tokens alone, so every text has its own positions.

    Args:
        model: a text model with one stack.
        texts: at least one.
        padding_side: None takes the tokenizer's own, or right where left would shift the model's positions.
    Returns:
        Tensors of the model's forward (B, N), and (B, N) bool, True for real tokens.
    Raises:
        ValueError: for no text, or for left padding on a model whose positions it would shift.
    """
    tokenizer = tokenizer_of(model, "encode_texts")
    if not texts:
        raise ValueError("encode_texts: texts must hold at least one text but is empty.")
    encoded = []
    for text in texts:
        tokens = tokenised(tokenizer, (clean(text)[0],))
        encoded.append(cut(tokens, limit_of(model, None, "encode_texts"), "encode_texts"))
    for tokens in encoded:
        check_tokens(model, tokens, "encode_texts")
    left = _pads_left(model, tokenizer, padding_side)
    length = max(len(tokens.ids) for tokens in encoded)
    padding_id = next(
        (number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0
    )
    fill = {"input_ids": padding_id, "attention_mask": 0}
    names = [name for name in model_fields(model, encoded[0]) if name in fill or name == "token_type_ids"]
    rows = {
        name: torch.stack(
            [_padded(tokens.fields[name], length, fill.get(name, 0), left=left) for tokens in encoded]
        )
        for name in names
    }
    valid = torch.stack([_padded([1] * len(tokens.ids), length, 0, left=left) for tokens in encoded]).bool()
    if left and takes(model.module, "position_ids") and model.family not in _POSITIONS_FROM_MASK:
        rows["position_ids"] = (valid.long().cumsum(-1) - 1).clamp(min=0)
    return {name: row.to(model.device) for name, row in rows.items()}, valid.to(model.device)


def _encode(
    model: LoadedModel, texts: tuple[str, ...], caller: str, *, target: str | None, max_tokens: int | None
) -> Inputs:
    """The inputs of one text or a pair."""
    tokenizer = tokenizer_of(model, caller)
    if target is not None and not model.is_encoder_decoder:
        raise ValueError(
            f"{caller}: target is for encoder-decoder models but {model.title} is none; leave it out."
        )
    cleaned = [clean(text) for text in texts]
    typed = tuple(text for text, _ in cleaned)
    whole = tokenised(tokenizer, typed)
    tokens = cut(whole, limit_of(model, max_tokens, caller), caller)
    check_tokens(model, tokens, caller)
    labelled = label_tokens(typed, tokens.pieces)
    notes = [note for _, found in cleaned for note in found]
    return text_inputs(model, typed, tokens, labelled, notes=notes, target=target, caller=caller)


def text_inputs(
    model: LoadedModel,
    typed: tuple[str, ...],
    tokens: Tokens,
    labelled: Labelled,
    *,
    caller: str,
    notes: Sequence[str] = (),
    target: str | None = None,
    direction: Literal["ltr", "rtl"] | None = None,
) -> Inputs:
    """The inputs of tokens that fit the model.

    Args:
        typed: the text, or both texts of a pair, cleaned.
        tokens: checked for the model; ``labelled``: what they stand for.
        notes: on what was changed before.
        target: as in ``encode_text``.
        direction: of the text, where it is known already.
    """
    tokenizer = model.processor
    notes = [*notes, *tokens.notes, *labelled.notes]
    if len(typed) == 2 and not all(text.strip() for text in typed):
        notes.append("One sentence of the pair is empty.")
    notes += _special_notes(labelled, tokens, tokenizer)
    tensors = {name: torch.tensor([values]) for name, values in model_fields(model, tokens).items()}
    tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    decoder = (
        decoder_target(model, tokenizer, tensors, labelled, target, caller)
        if model.is_encoder_decoder
        else Target()
    )
    if decoder.ids is not None:
        tensors["decoder_input_ids"] = torch.tensor([decoder.ids], device=model.device)
    source = typed[0] if len(typed) == 1 else f"A: {typed[0]}\nB: {typed[1]}"
    source += f"\nTarget: {target}" if target is not None else ""
    return Inputs(
        tensors=MappingProxyType(tensors),
        tokens=labelled.labels,
        target_tokens=decoder.labels or _learned_query(model),
        grid=None,
        picture=None,
        source=source,
        digest=input_digest(source, tensors),
        notes=tuple(dict.fromkeys((*notes, *decoder.notes))),
        total_tokens=tokens.total,
        kept_tokens=len(tokens.ids),
        direction=direction or text_direction(*typed),
        spans=labelled.spans,
    )


def _learned_query(model: LoadedModel) -> tuple[TokenLabel, ...] | None:
    """The one row of a model whose attention has a learned query instead of tokens that ask."""
    return (LEARNED_QUERY,) if model.family == RECURRENT else None


def tokenizer_of(model: LoadedModel, caller: str) -> Any:
    """The model's tokenizer, or a refusal."""
    if model.modality != "text":
        raise UnsupportedModelError(
            f"{caller}: {model.title} takes {model.modality}, not text; choose a text model."
        )
    if model.processor is None:
        raise UnsupportedModelError(
            f"{caller}: {model.title} came without a tokenizer; add its tokenizer files to the model's folder."
        )
    return model.processor


def _special_notes(labelled: Labelled, tokens: Tokens, tokenizer: Any) -> list[str]:
    """What a reader must know of special and unknown tokens."""
    notes = []
    if not any(side is not None for side in tokens.pieces.sides):
        notes.append("The text is empty: only special tokens go in.")
    own = set(getattr(tokenizer, "all_special_ids", ()))
    typed = [
        label.piece
        for number, label in zip(tokens.ids, labelled.labels, strict=True)
        if number in own and not label.special and not label.unknown
    ]
    if typed:
        notes.append(
            f"The text spells {', '.join(sorted(set(typed)))}, which the tokenizer reads as its special token."
        )
    unknown = sum(label.unknown for label in labelled.labels)
    if unknown:
        notes.append(
            f"{unknown} token{' is' if unknown == 1 else 's are'} unknown to the model (shown as typed)."
        )
    return notes


def check_one_pass(inputs: Inputs, caller: str) -> None:
    """Refuse a document that is read in windows, where something needs one pass over the whole input.

    Raises:
        UnsupportedModelError: for such a document.
    """
    if inputs.reading is not None:
        raise UnsupportedModelError(
            f"{caller}: the text is read in {len(inputs.reading.windows):,} windows of {inputs.reading.window:,} "
            "tokens, and this needs one pass over the whole; open one window alone, or shorten the text."
        )


# Batches ---------------------------------------------------------------------------------------------------------


def _pads_left(model: LoadedModel, tokenizer: Any, padding_side: str | None) -> bool:
    """Whether a batch is padded on the left."""
    if padding_side not in (None, "left", "right"):
        raise ValueError(f"encode_texts: padding_side must be left, right or None but is {padding_side!r}.")
    safe = takes(model.module, "position_ids") or model.family in _POSITIONS_FROM_MASK
    if padding_side == "left" and not safe:
        raise ValueError(
            f"encode_texts: padding_side must be right for {model.title}, which takes no position ids; "
            "left padding would shift its positions."
        )
    side = padding_side or getattr(tokenizer, "padding_side", "right")
    return bool(side == "left" and safe)


def _padded(values: Sequence[int], length: int, fill: int, *, left: bool) -> Tensor:
    """(length,) values with padding on one side."""
    padding = [fill] * (length - len(values))
    return torch.tensor([*padding, *values] if left else [*values, *padding])


# Pictures --------------------------------------------------------------------------------------------------------


def encode_image(model: LoadedModel, picture: Picture, *, side: PictureSide = None) -> Inputs:
    """A picture, as ``model`` takes it.

    Without ``side``, models of one size get the resize and crop of their image processor, and models that take any
    size (DINOv2) the picture in its own shape, its shorter side 224 pixels. With ``side``, models that take other
    sizes get the picture in its own shape with that shorter side, rounded down to whole patches; the model then
    interpolates its position embeddings itself. With ``side="own"`` it is not enlarged or reduced, but for whole
    patches and ``LONGEST_OWN_SIDE``.

    Args:
        model: an image model that cuts pictures into patches.
        picture: what ``analysis.images.read_picture`` gave.
        side: shorter side in pixels, or "own".
    Returns:
        ``Inputs`` with ``grid`` from the true size and ``picture`` as the model saw it.
    Raises:
        ValueError: if ``side`` or the picture's shape does not fit the model.
        UnsupportedModelError: if the model takes no pictures, or has no patches.
    """
    if model.modality != "image":
        raise UnsupportedModelError(
            f"encode_image: {model.title} takes {model.modality}, not pictures; choose an image model."
        )
    if model.patch_size is None:
        raise UnsupportedModelError(
            f"encode_image: {model.title} cuts pictures into no patches; choose a vision transformer."
        )
    _check_side(model, side)
    preparation, notes = preparation_of(model)
    any_size = model.flexible_image_size and not takes(model.module, "interpolate_pos_encoding")
    if side is not None or any_size:
        _check_position_table(model)
        size, made = _size_in_whole_patches(model, picture, side)
        seen = resizing.resized(picture.pixels, size, preparation.resample)
        values = resizing.normalised(seen, preparation)
    else:
        seen, values, made = _in_trained_size(model, picture.pixels, preparation)
    grid, edge = _grid(seen, model)
    dtype = model.dtype if model.dtype.is_floating_point else torch.float32
    tensors = {"pixel_values": torch.from_numpy(values)[None].to(model.device, dtype)}
    if seen.shape[:2] != model.image_size and takes(model.module, "interpolate_pos_encoding"):
        tensors["interpolate_pos_encoding"] = torch.tensor(True)
    covered = _covered(seen, grid, preparation)
    covered.flags.writeable = False
    source = f"{picture.name or 'picture'} (SHA-256 {picture.sha256})"
    positions = grid.prefix_tokens + grid.rows * grid.columns
    return Inputs(
        tensors=MappingProxyType(tensors),
        tokens=None,
        target_tokens=None,
        grid=grid,
        picture=covered,
        source=source,
        digest=input_digest(source, tensors),
        notes=(*picture.notes, *notes, *made, *edge),
        total_tokens=positions,
        kept_tokens=positions,
    )


def own_side(picture: Picture) -> int:
    """Shorter side in pixels of a picture at its own size, reduced to ``LONGEST_OWN_SIDE`` where it is larger."""
    short, long = sorted(picture.pixels.shape[:2])
    return max(int(short * min(1.0, LONGEST_OWN_SIDE / long) + 0.5), 1)


def grid_at(model: LoadedModel, picture: Picture, side: PictureSide) -> PatchGrid:
    """The patches that ``encode_image`` would cut the picture into, told before anything is resized or run.

    Args:
        model: of pictures, with patches, that takes sizes other than its own.
        side: not None.
    Raises:
        ValueError, UnsupportedModelError: as ``encode_image``.
    """
    _check_side(model, side)
    _check_position_table(model)
    (height, width), _ = _size_in_whole_patches(model, picture, side)
    patch = model.patch_size or 1
    return PatchGrid(height // patch, width // patch, patch, height, width, model.prefix_tokens)


def _size_in_whole_patches(
    model: LoadedModel, picture: Picture, side: PictureSide
) -> tuple[resizing.Size, list[str]]:
    """(height, width) of a picture in its own shape, and what that changes in words."""
    patch = model.patch_size or 1
    before = (picture.pixels.shape[0], picture.pixels.shape[1])
    most = MOST_PATCHES if side is None else MOST_PATCHES_ASKED
    most = MOST_PATCHES_IN_WINDOWS if windowed_layers(model.module) else most
    if side != "own":
        wished = max(SHORTER_SIDE // patch, 1) * patch if side is None else side
        return resizing.patch_aligned_size(before, patch, side=wished, most_patches=most)
    size, notes = resizing.patch_aligned_size(
        before, patch, side=max(own_side(picture) // patch, 1) * patch, most_patches=most
    )
    if max(before) > LONGEST_OWN_SIDE:
        notes.insert(0, f"Its own size is larger than {LONGEST_OWN_SIDE:,} pixels along the longer side.")
    return size, notes


def _check_side(model: LoadedModel, side: PictureSide) -> None:
    """Refuse a side that the model cannot take."""
    if side is None:
        return
    if not model.flexible_image_size:
        size = f"{model.image_size[1]} × {model.image_size[0]}" if model.image_size else "one size"
        raise ValueError(
            f"encode_image: side must be None for {model.title}, which takes {size} only, but is {side}."
        )
    patch = model.patch_size or 1
    if isinstance(side, str) and side != "own":
        raise ValueError(f"encode_image: side must be pixels, 'own' or None but is {side!r}.")
    if isinstance(side, int) and side < patch:
        raise ValueError(f"encode_image: side must be at least one patch of {patch} pixels but is {side}.")


def _check_position_table(model: LoadedModel) -> None:
    """Refuse other sizes on a position table that is not square: the library can only interpolate square ones."""
    if model.image_size is None or model.image_size[0] == model.image_size[1]:
        return
    names = [name for name, _ in model.module.named_parameters()]
    if any("position_embedding" in name for name in names):
        raise UnsupportedModelError(
            f"encode_image: the position table of {model.title} was made for {model.image_size[1]} × "
            f"{model.image_size[0]} pixels and the library interpolates square tables only; choose another model."
        )


def preparation_of(model: LoadedModel) -> tuple[resizing.Preparation, list[str]]:
    """The numbers of the model's image processor, or the ones that stand in for it."""
    imagenet = model.family.startswith("dino")
    half = (0.5, 0.5, 0.5)
    preparation = resizing.preparation_of(
        model.processor,
        mean=resizing.IMAGENET_MEAN if imagenet else half,
        std=resizing.IMAGENET_STD if imagenet else half,
    )
    if model.processor is not None:
        return preparation, []
    numbers = "those of ImageNet" if imagenet else "0.5"
    return preparation, [f"The model came without an image processor: mean and deviation are {numbers}."]


def _in_trained_size(
    model: LoadedModel, pixels: NDArray[np.uint8], preparation: resizing.Preparation
) -> tuple[NDArray[np.uint8], NDArray[np.float32], list[str]]:
    """The picture as the image processor prepares it, its values, and what that did."""
    if preparation.other_steps:
        prepared = model.processor(images=pixels, return_tensors="np")["pixel_values"][0].astype(np.float32)
        note = f"Prepared by the model's own image processor ({', '.join(preparation.other_steps)})."
        return resizing.denormalised(prepared, preparation), prepared, [note]
    seen, notes = resizing.fitted(pixels, preparation)
    if model.image_size is not None and seen.shape[:2] != model.image_size:
        whole = replace(
            preparation, size={"height": model.image_size[0], "width": model.image_size[1]}, crop=None
        )
        if preparation.size:
            notes = ["The image processor's size does not fit the model, so the model's own is used."]
        else:
            notes = []
        seen, more = resizing.fitted(pixels, whole)
        notes += more
    return seen, resizing.normalised(seen, preparation), notes


def _grid(seen: NDArray[np.uint8], model: LoadedModel) -> tuple[PatchGrid, list[str]]:
    """The patches that cover a picture, and what they leave out at its right and lower edge."""
    patch = model.patch_size
    assert patch is not None  # checked at entry
    height, width = seen.shape[:2]
    pads = pads_to_whole_patches(model.module)
    rows, columns = (-(-length // patch) if pads else length // patch for length in (height, width))
    if not rows or not columns:
        raise ValueError(
            f"encode_image: a picture of {width} × {height} pixels holds no whole patch of {patch} pixels for "
            f"{model.title}; choose a larger side."
        )
    grid = PatchGrid(rows, columns, patch, rows * patch, columns * patch, model.prefix_tokens)
    lost = (width - grid.width, height - grid.height)
    if lost == (0, 0):
        return grid, []
    if pads:
        return grid, [
            f"{width} × {height} pixels are no whole number of {patch}-pixel patches: the model adds {-lost[0]} "
            f"columns and {-lost[1]} rows of its mean colour at the right and lower edge."
        ]
    return grid, [
        f"{width} × {height} pixels are no whole number of {patch}-pixel patches: the model does not see the last "
        f"{lost[0]} columns and {lost[1]} rows of pixels."
    ]


def _covered(
    seen: NDArray[np.uint8], grid: PatchGrid, preparation: resizing.Preparation
) -> NDArray[np.uint8]:
    """The part of a picture that its patches cover; what a model adds at the edges is zero, its mean colour."""
    zeros = np.zeros((3, grid.height, grid.width), dtype=np.float32)
    covered = resizing.denormalised(zeros, preparation)
    height, width = min(grid.height, seen.shape[0]), min(grid.width, seen.shape[1])
    covered[:height, :width] = seen[:height, :width]
    return covered


def input_digest(source: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a source and of the tensors made from it."""
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
