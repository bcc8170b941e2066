"""Surveys: real models over batches, what a stop leaves, the bootstrap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.heads.measures import measure
from analysis.heads.patterns import classify_heads
from analysis.heads.positions import layouts_of, piece_counts
from analysis.heads.survey import (
    MOST_INPUTS,
    HeadTable,
    Surveyor,
    batches,
    independent_windows,
    stacked,
    survey_inputs,
)
from analysis.images import read_picture
from analysis.inputs import Inputs, encode_image, encode_pair, encode_text
from analysis.models import LoadedModel, load_model
from analysis.reading import encode_document
from analysis.samples import sample_picture_bytes
from analysis.trace import trace
from tests import input_helpers as tiny
from tests.evidence.oracle_models import small_vit
from tests.tiny_models import BY_NAME

TEXTS = (
    "the house is old",
    "a great day: hello world, we say",
    "the bread is good and the day is great",
    "hello",
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("bert")
    return tiny.loaded(folder, "BertModel", "BertConfig", tiny.word_piece(), **tiny.BERT)


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("bart")
    tokenizer = tiny.byte_level(roberta=True)
    return tiny.loaded(folder, "BartForConditionalGeneration", "BartConfig", tokenizer, **tiny.BART)


def alone(model: LoadedModel, inputs: list[Inputs], kind: str) -> list[dict[str, np.ndarray]]:
    """(L, H) means of each input by itself."""
    counts, found = piece_counts([each.tokens or () for each in inputs]), []
    for each in inputs:
        layouts = layouts_of([each], frequencies=counts)
        maps = trace(model, each).maps(kind)
        layers = [measure(layer, layouts[kind]).means() for layer in maps]
        found.append({key: np.stack([layer[key][0].numpy() for layer in layers]) for key in layers[0]})
    return found


def test_a_survey_is_the_mean_of_its_inputs(bert):
    inputs = [encode_text(bert, text) for text in TEXTS]
    assert len(list(batches(inputs))) == 1, "all of them go through the model together"
    survey = survey_inputs(bert, inputs)
    assert (survey.inputs, survey.tokens) == (4, sum(each.kept_tokens for each in inputs))
    table, each = survey.tables["encoder"], alone(bert, inputs, "encoder")
    for key in ("entropy", "offset-1", "classifier", "strongest+1", "rarest", "column"):
        expected = np.mean([found[key] for found in each], axis=0)
        np.testing.assert_allclose(table.value(key, each=True), expected, rtol=1e-3, atol=1e-5, err_msg=key)
    pooled = table.totals["entropy"].sum(0) / table.counts["entropy"].sum()
    np.testing.assert_allclose(table.value("entropy"), pooled, rtol=1e-6)


def test_the_order_of_inputs_does_not_matter(bert):
    inputs = [encode_text(bert, text) for text in TEXTS]
    one, other = (survey_inputs(bert, order).tables["encoder"] for order in (inputs, inputs[::-1]))
    for key, value in one.values().items():
        np.testing.assert_allclose(other.value(key), value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_pairs_have_segments(bert):
    survey = survey_inputs(bert, [encode_pair(bert, "the house is old", "hello world")])
    values = survey.tables["encoder"].values()
    assert np.all((values["same_segment"] > 0) & (values["same_segment"] < 1))
    assert "block" in classify_heads(values, picture=False).keys


def test_encoder_decoders_have_three_tables(bart):
    inputs = [encode_text(bart, text, target="the day is great") for text in TEXTS[:2]]
    survey = survey_inputs(bart, inputs)
    assert set(survey.tables) == {"encoder", "decoder", "cross"}
    assert all(table.inputs == 2 for table in survey.tables.values())
    assert "offset-1" in survey.tables["decoder"].totals
    assert "offset-1" not in survey.tables["cross"].totals
    for table in survey.tables.values():
        assert classify_heads(table.values(), picture=False).best.shape == table.shape


def test_decoders_are_padded_at_the_end(tmp_path):
    model = tiny.loaded(tmp_path, "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2)
    inputs = [encode_text(model, text) for text in TEXTS]
    table, each = survey_inputs(model, inputs).tables["decoder"], alone(model, inputs, "decoder")
    for key in ("entropy", "first", "direction", "relative_entropy"):
        totals = np.stack([found[key] for found in each])
        np.testing.assert_allclose(
            table.value(key, each=True), np.nanmean(totals, axis=0), rtol=1e-3, atol=1e-5, err_msg=key
        )


def test_pictures_have_likeness_and_distance():
    model = small_vit("float32")
    picture = read_picture(sample_picture_bytes("elephant"))
    inputs = [encode_image(model, picture), encode_image(model, picture)]
    survey = survey_inputs(model, inputs)
    values = survey.tables["encoder"].values()
    assert {"content", "sink_patches", "pixels", "row"} <= set(values)
    assert "distance" not in values
    one = survey_inputs(model, inputs[:1]).tables["encoder"]
    np.testing.assert_allclose(one.value("pixels"), values["pixels"], rtol=1e-5)
    assert classify_heads(values, picture=True).best.shape == (4, 3)


def test_a_batch_without_a_statistic_counts_no_query_of_it(bert):
    pair, single = encode_pair(bert, "the house is old", "hello"), encode_text(bert, "a great day " * 18)
    surveyor = Surveyor()
    for each in (single, pair):
        survey_inputs(bert, [each], surveyor=surveyor)
    table = surveyor.survey().tables["encoder"]
    assert table.inputs == 2
    assert table.counts["same_segment"].tolist()[0] == 0
    alone = survey_inputs(bert, [pair]).tables["encoder"]
    np.testing.assert_array_equal(table.value("same_segment"), alone.value("same_segment"))


def test_models_with_a_learned_query_and_with_windows_are_surveyed(tmp_path):
    recurrent = load_model("recurrent-sentiment", device="cpu")
    found = survey_inputs(recurrent, [encode_text(recurrent, text) for text in ("A dull start.", "Great")])
    assert {kind: table.inputs for kind, table in found.tables.items()} == {"encoder": 1, "cross": 1}
    BY_NAME["Swin"].build().save_pretrained(tmp_path)
    swin = load_model(tmp_path, device="cpu")
    picture = read_picture(sample_picture_bytes("cat"))
    found = survey_inputs(swin, [encode_image(swin, picture, side=64)])
    table = found.tables["encoder"]
    assert table.shape[0] < swin.layers, "layers of merged patches are left out"
    assert any("merged" in note or "left out" in note for note in found.notes)
    assert np.isfinite(table.value("pixels")).all()


def test_a_stopped_run_keeps_what_it_has(bert):
    class Enough(Exception):
        pass

    inputs = [encode_text(bert, " ".join([text] * 7)) for text in TEXTS * 20]
    surveyor, told = Surveyor(), []

    def progress(done: float) -> None:
        told.append(done)
        if len(told) == 2:
            raise Enough

    with pytest.raises(Enough):
        survey_inputs(bert, inputs, surveyor=surveyor, progress=progress)
    assert 0 < surveyor.inputs < len(inputs)
    assert surveyor.survey().tables["encoder"].inputs == surveyor.inputs
    assert told == sorted(told)
    assert told[-1] < 1


def test_nothing_and_too_much_are_refused(bert):
    with pytest.raises(ValueError, match=f"inputs must be 1 to {MOST_INPUTS:,} but are 0"):
        survey_inputs(bert, [])
    with pytest.raises(ValueError, match="no input was added"):
        Surveyor().survey()


def test_batches_keep_kinds_apart(bert):
    inputs = [encode_text(bert, "hello"), encode_pair(bert, "hello", "world")]
    (batch,) = batches(inputs)
    tensors = stacked(batch)
    lengths = [each.kept_tokens for each in batch]
    assert tensors["attention_mask"].sum(1).tolist() == lengths
    assert tensors["token_type_ids"].sum() == 2


def test_the_bootstrap_is_as_wide_as_the_mean_is_uncertain():
    random = np.random.default_rng(0)
    totals = random.normal(3, 2, size=(400, 1, 1)).astype(np.float32)
    table = HeadTable({"entropy": totals}, {"entropy": np.ones(400, dtype=np.float32)})
    samples = table.resampled(["entropy"], samples=400)["entropy"][:, 0, 0]
    assert samples.mean() == pytest.approx(totals.mean(), abs=0.03)
    assert samples.std() == pytest.approx(totals.std() / 20, rel=0.15)
    again = table.resampled(["entropy"], samples=400)["entropy"][:, 0, 0]
    np.testing.assert_array_equal(samples, again)


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_windows_that_repeat_others_do_not_narrow_an_interval(copies):
    """Of a mean of 20 draws the spread is σ / √20, however often each input is there; of all rows it would be less.

    A standard deviation of 4,000 samples has a relative error of 1 / √8,000: four of them are 4.5 %.
    """
    once = np.random.default_rng(1).normal(3, 2, size=(20, 1, 1)).astype(np.float32)
    totals = np.repeat(once, copies, axis=0)
    table = HeadTable({"entropy": totals}, {"entropy": np.ones(20 * copies, dtype=np.float32)})
    expected = once.std() / np.sqrt(20)
    honest = table.resampled(["entropy"], samples=4000, draws=20)["entropy"][:, 0, 0]
    assert honest.std() == pytest.approx(expected, rel=0.045)
    every = table.resampled(["entropy"], samples=4000)["entropy"][:, 0, 0]
    assert every.std() == pytest.approx(expected / np.sqrt(copies), rel=0.045)


@pytest.mark.parametrize("draws", [0, 5])
def test_a_sample_holds_one_to_all_inputs(draws):
    table = HeadTable({"entropy": np.ones((4, 1, 1), np.float32)}, {"entropy": np.ones(4, np.float32)})
    with pytest.raises(
        ValueError, match=f"draws must be between 1 and the 4 inputs but is {draws}; pass how"
    ):
        table.resampled(["entropy"], draws=draws)


@pytest.mark.parametrize("stride", [1, 3, 6, 11, 12])
def test_as_many_windows_are_independent_as_stand_side_by_side(bert, stride):
    """Twelve tokens of the text in a window: a finer stride makes more windows, and no more of them independent."""
    inputs = encode_document(bert, " ".join(["house"] * 65), window=14, stride=stride)
    assert inputs.reading is not None
    tokens = inputs.kept_tokens - 2
    assert tokens // 12 >= 5
    assert independent_windows(inputs.reading) == tokens // 12 <= len(inputs.reading.windows)
    short = encode_document(bert, " ".join(["house"] * 3), window=tokens_of(bert, 3) - 1, stride=1)
    assert short.reading is not None
    assert len(short.reading.windows) == 2
    assert independent_windows(short.reading) == 1


def tokens_of(model: LoadedModel, words: int) -> int:
    """Tokens of the same word some times over, special ones included."""
    return encode_text(model, " ".join(["house"] * words)).kept_tokens


def test_a_survey_leaves_the_model_as_it_was(bert):
    before = {name: tensor.clone() for name, tensor in bert.module.state_dict().items()}
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in bert.module.modules()]
    survey_inputs(bert, [encode_text(bert, TEXTS[0])])
    assert all(torch.equal(before[name], tensor) for name, tensor in bert.module.state_dict().items())
    assert hooks == [
        len(part._forward_hooks) + len(part._forward_pre_hooks) for part in bert.module.modules()
    ]
    assert Path(bert.name).exists()
