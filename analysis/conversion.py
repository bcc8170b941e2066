"""ONNX file of a DINOv2 backbone → an ordinary ``config.json`` + ``model.safetensors`` folder.

The exporter of PyTorch keeps the checkpoint's own names for biases, norms and convolutions (``backbone.*``), but a
linear layer's matrix becomes an anonymous constant of a MatMul node, stored transposed; only the node's name
(``/backbone/encoder/layer.3/mlp/fc1/MatMul``) says whose it is. The position embedding is split in two constants:
the class token's part and the grid's. Everything is checked: each expected tensor exactly once, each with its
shape, and the sizes that the graph itself states.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

Array = NDArray[np.float32]

PREFIX = "backbone."
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneSizes:
    """Sizes of a DINOv2 backbone, as its graph states them."""

    layers: int
    width: int
    hidden: int
    heads: int
    patch: int
    grid: int
    norm_epsilon: float


def convert_dinov2(onnx_file: Path, folder: Path) -> BackboneSizes:
    """Write the backbone of ``onnx_file`` to ``folder`` so that ``Dinov2Model.from_pretrained`` loads it.

    Args:
        onnx_file: a PyTorch export whose module ``backbone`` is a Hugging Face ``Dinov2Model``.
        folder: an existing folder; ``config.json``, ``model.safetensors`` and ``preprocessor_config.json``
            are written into it, the same bytes every time.
    Raises:
        ValueError: if a tensor is missing, comes twice, has another shape, or is left over.
    """
    graph = onnx.load(str(onnx_file)).graph
    weights = backbone_weights(graph)
    sizes = backbone_sizes(graph, weights)
    check_weights(weights, sizes)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", dinov2_config(sizes))
    _write_json(folder / "preprocessor_config.json", preprocessor_config())
    return sizes


def backbone_weights(graph: onnx.GraphProto) -> dict[str, Array]:
    """Every tensor of the backbone under its checkpoint name, sorted by name."""
    found: dict[str, Array] = {}
    for name, array in _named_tensors(graph):
        if name in found:
            raise ValueError(f"convert_dinov2: the ONNX file holds {name} twice.")
        found[name] = np.ascontiguousarray(array, dtype=np.float32)
    return dict(sorted(found.items()))


def _named_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, Array]]:
    """Pairs of checkpoint name and array, for tensors with names of their own and for anonymous ones."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for name, tensor in constants.items():
        if name.startswith(PREFIX):
            yield name.removeprefix(PREFIX), numpy_helper.to_array(tensor)
    position: dict[str, Array] = {}
    for node in graph.node:
        scope = node.name.strip("/").replace("/", ".")
        if not scope.startswith(PREFIX):
            continue
        anonymous = [name for name in node.input if name in constants and not name.startswith(PREFIX)]
        for name in anonymous:
            array = numpy_helper.to_array(constants[name])
            if node.op_type == "MatMul":
                layer = scope.removeprefix(PREFIX).removesuffix(".MatMul")
                yield f"{layer}.weight", array.T
            elif scope.startswith(f"{PREFIX}embeddings.") and array.ndim == 3:
                position["class" if node.op_type == "Concat" else "grid"] = array
            else:
                raise ValueError(f"convert_dinov2: nothing is known of constant {name} of node {node.name}.")
    if position.keys() != {"class", "grid"}:
        raise ValueError("convert_dinov2: the position embedding's class part and grid part were not found.")
    yield "embeddings.position_embeddings", np.concatenate([position["class"], position["grid"]], axis=1)


def backbone_sizes(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> BackboneSizes:
    """Sizes read from the tensors, and head count and norm epsilon from the constants of the graph."""
    try:
        projection = weights["embeddings.patch_embeddings.projection.weight"]  # (M, 3, p, p)
        hidden = weights["encoder.layer.0.mlp.fc1.weight"].shape[0]
        positions = weights["embeddings.position_embeddings"].shape[1] - 1
    except KeyError as missing:
        raise ValueError(f"convert_dinov2: the ONNX file lacks {missing.args[0]}.") from missing
    heads, head_width = _head_split(graph)
    if heads * head_width != projection.shape[0]:
        raise ValueError(
            f"convert_dinov2: the graph splits width {projection.shape[0]} into {heads} heads of {head_width}."
        )
    epsilon = _norm_epsilon(graph)
    if not 0 < epsilon < 1e-2:
        raise ValueError(f"convert_dinov2: the graph's layer norm epsilon is {epsilon}.")
    return BackboneSizes(
        layers=len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}),
        width=projection.shape[0],
        hidden=hidden,
        heads=heads,
        patch=projection.shape[-1],
        grid=math.isqrt(positions),
        norm_epsilon=float(np.format_float_positional(np.float32(epsilon), unique=True)),
    )


def _constants(graph: onnx.GraphProto) -> dict[str, list[float]]:
    """Value of every Constant node by the name of its output."""
    return {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t).reshape(-1).tolist()
        for node in graph.node
        if node.op_type == "Constant"
    }


def _head_split(graph: onnx.GraphProto) -> tuple[int, int]:
    """Heads and width of a head: the last two sizes to which the first attention reshapes its projections."""
    constants = _constants(graph)
    for node in graph.node:
        if node.op_type == "Concat" and node.name.startswith(
            "/backbone/encoder/layer.0/attention/attention/"
        ):
            sizes = [int(constants[name][0]) for name in node.input if name in constants]
            if len(sizes) == 2:
                return sizes[0], sizes[1]
    return 0, 0


def _norm_epsilon(graph: onnx.GraphProto) -> float:
    """What the first layer norm adds to the variance."""
    constants = _constants(graph)
    for node in graph.node:
        if node.op_type == "Add" and node.name.startswith("/backbone/encoder/layer.0/norm1/"):
            values = [constants[name][0] for name in node.input if name in constants]
            if values:
                return values[0]
    return math.nan


def expected_shapes(sizes: BackboneSizes) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a ``Dinov2Model`` of these sizes."""
    width, hidden = sizes.width, sizes.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, sizes.grid**2 + 1, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, sizes.patch, sizes.patch),
        "embeddings.patch_embeddings.projection.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
    }
    linear = {f"attention.attention.{part}": (width, width) for part in ("query", "key", "value")}
    linear |= {
        "attention.output.dense": (width, width),
        "mlp.fc1": (hidden, width),
        "mlp.fc2": (width, hidden),
    }
    for layer in range(sizes.layers):
        prefix = f"encoder.layer.{layer}"
        for name, shape in linear.items():
            shapes[f"{prefix}.{name}.weight"] = shape
            shapes[f"{prefix}.{name}.bias"] = shape[:1]
        for norm in ("norm1", "norm2"):
            shapes[f"{prefix}.{norm}.weight"] = shapes[f"{prefix}.{norm}.bias"] = (width,)
        shapes[f"{prefix}.layer_scale1.lambda1"] = shapes[f"{prefix}.layer_scale2.lambda1"] = (width,)
    return shapes


def check_weights(weights: Mapping[str, Array], sizes: BackboneSizes) -> None:
    """Raise ``ValueError`` unless ``weights`` are exactly the tensors of a model of these sizes."""
    expected = expected_shapes(sizes)
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or extra:
        raise ValueError(f"convert_dinov2: missing {missing[:3]}, left over {extra[:3]}.")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise ValueError(f"convert_dinov2: {name} must be {shape} but is {weights[name].shape}.")
        if not np.isfinite(weights[name]).all():
            raise ValueError(f"convert_dinov2: {name} holds values that are not finite.")


def dinov2_config(sizes: BackboneSizes) -> dict[str, object]:
    """``config.json`` of a ``Dinov2Model``; the export has no mask token, which only pre-training uses."""
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": sizes.width,
        "image_size": sizes.grid * sizes.patch,
        "initializer_range": 0.02,
        "layer_norm_eps": sizes.norm_epsilon,
        "mlp_ratio": sizes.hidden // sizes.width,
        "num_attention_heads": sizes.heads,
        "num_channels": 3,
        "num_hidden_layers": sizes.layers,
        "patch_size": sizes.patch,
        "qkv_bias": True,
        "use_mask_token": False,
        "use_swiglu_ffn": False,
        "dtype": "float32",
    }


def preprocessor_config() -> dict[str, object]:
    """``preprocessor_config.json`` with DINOv2's own resizing and ImageNet's mean and spread."""
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
    }


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
