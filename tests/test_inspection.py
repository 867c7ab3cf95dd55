"""`leaner inspect`: matrices whose numbers are known, layers as they compute, and the command."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.publishing.folders import results_in
from training_data import documents, pictures
from typer.testing import CliRunner

from modeling_leaner import (
    LeanBERTConfig,
    LeanBERTForMultipleChoice,
    LeanBERTModel,
    LeanGPTConfig,
    LeanGPTModel,
    LeanViTConfig,
    LeanViTModel,
)
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import convert
from modeling_leaner.inspection import (
    attend,
    head_condition_numbers,
    head_similarity,
    inspect_layers,
    rows_of,
)


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXT = {"vocab_size": 60, "max_position_embeddings": 32, "initializer_range": 0.4}
THEIRS = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 60, "initializer_range": 0.4}
LISTOPS = Path(__file__).parent.parent / "model_cards" / "leanbert-mini-listops"
GPT_IDS = {"bos_token_id": 1, "eos_token_id": 1}


def vit(**changes):
    return LeanViTModel(LeanViTConfig(image_size=8, patch_size=4, initializer_range=0.4, **{**SIZES, **changes}))


def bert(**changes):
    return LeanBERTModel(LeanBERTConfig(**{**SIZES, **TEXT, **changes}))


def gpt(**changes):
    return LeanGPTModel(LeanGPTConfig(**{**SIZES, **TEXT, **GPT_IDS, **changes}))


def token_rows(count=3, length=12):
    return {"input_ids": torch.randint(2, 60, (count, length))}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class TestMatrices:
    def test_query_key_without_the_product(self):
        model, rows = bert().eval(), rows_of(token_rows())
        attention = model.layers[0].self_attn
        query, key = (linear.weight[:4].double() for linear in (attention.q_proj, attention.k_proj))
        values = torch.linalg.svdvals(query.T @ key)
        spectrum = inspect_layers(model, rows)[0].query_key[0]
        assert spectrum.size == 4 and spectrum.condition_number == pytest.approx((values[0] / values[3]).item())
        with torch.no_grad():
            attention.k_proj.weight[3] = attention.k_proj.weight[2]
        assert inspect_layers(model, rows)[0].query_key[0].rank == 3

    def test_similarity(self):
        """1 of a head turned, scaled and moved; 0 of one that varies apart; NaN of one that does not vary."""
        noise = torch.randn(20, 4, dtype=torch.double)
        tokens = torch.linalg.qr(noise - noise.mean(dim=0)).Q  # columns of mean 0, orthonormal
        turn = torch.linalg.qr(torch.randn(2, 2, dtype=torch.double)).Q
        first, apart = tokens[:, :2], tokens[:, 2:4]
        heads = torch.stack([first, 3 * first @ turn + 1, apart, torch.zeros_like(first)], dim=1)
        similarity = head_similarity(heads)
        assert similarity[0, 1].item() == pytest.approx(1) and similarity[0, 2].item() == pytest.approx(0, abs=1e-12)
        assert similarity[0, 0].item() == pytest.approx(1) and similarity[0, 3].isnan()


def small_block(number):
    """One of 20 blocks and states for it: three families, widths, heads, lengths; grouped keys in some."""
    width = (16, 24)[number % 2]
    heads = (2, 4, 8)[number % 3]
    changes = {"hidden_size": width, "num_attention_heads": heads, "head_dim": (4, 8)[number % 4 // 2]}
    if number % 3 == 2:
        changes["num_key_value_heads"] = heads // 2
    torch.manual_seed(number)
    model = (vit, bert, gpt)[number % 3](**changes)
    return model.eval().layers[0], torch.randn(5 + number % 6, width)


class TestHeadConditionNumbers:
    """κ of the concatenated head outputs."""

    def test_equals_the_head_outputs_put_together_by_hand(self):
        model, ids = bert().double().eval(), torch.randint(2, 60, (3, 12))
        found = head_condition_numbers(model, input_ids=ids)
        model.set_attn_implementation("eager")  # which returns its weights
        outputs = model(ids, output_attentions=True, output_hidden_states=True)
        for layer, weights, states in zip(range(2), outputs.attentions, outputs.hidden_states):
            values = model.layers[layer].self_attn.v_proj(states).view(3, 12, 4, 4).transpose(1, 2)
            singular = torch.linalg.svdvals((weights @ values).transpose(1, 2).flatten(2))
            assert found[layer] == pytest.approx((singular[:, 0] / singular[:, -1]).median().item(), rel=1e-4)

    def test_padding_and_choices(self):
        """Padding does not count; (B, C, T) of multiple choice are B·C rows. Each module keeps its mode."""
        model = LeanBERTForMultipleChoice(bert().config).train()
        model.model.layers[0].eval()
        modes = [module.training for module in model.modules()]
        ids, mask = torch.randint(2, 60, (2, 3, 12)), torch.ones(2, 3, 12, dtype=torch.long)
        mask[1, 2, 6:] = 0
        found = head_condition_numbers(model, input_ids=ids, attention_mask=mask)
        flat, seen = ids.flatten(0, 1), mask.flatten(0, 1)
        assert found == head_condition_numbers(model.model, input_ids=flat, attention_mask=seen)
        last = head_condition_numbers(model.model, input_ids=flat[5:], attention_mask=seen[5:])
        assert last == pytest.approx(head_condition_numbers(model.model, input_ids=flat[5:, :6]), rel=1e-3)
        assert [module.training for module in model.modules()] == modes
        assert not any(module._forward_pre_hooks for module in model.modules())


class TestLayers:
    @pytest.mark.parametrize("number", range(6))
    def test_heads_are_what_the_block_reads(self, number):
        block, states = small_block(number)
        read = states if number % 3 == 1 else block.norm1(states)  # BERT's norm comes after
        causal = torch.full((len(states), len(states)), -torch.inf).triu(1)[None, None]
        mask = causal if number % 3 == 2 else None
        with torch.no_grad():
            expected = block.self_attn(read[None], mask)[0][0]
            _, heads = attend(block.self_attn, read)
            torch.testing.assert_close(block.self_attn.o_proj(heads.flatten(1)), expected)

    def test_transformers_models(self):
        """Of the converted model, what transformers itself gives: entropy of its weights, spectra of its matrices."""
        encoder = {**SIZES, "initializer_range": 0.4}
        theirs = [
            transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **encoder)),
            transformers.BertModel(transformers.BertConfig(**SIZES, **TEXT)),
            transformers.GPT2Model(transformers.GPT2Config(**THEIRS, **GPT_IDS)),
        ]
        for model in theirs:
            model.eval().set_attn_implementation("eager")
            inputs = token_rows()
            if model.main_input_name == "pixel_values":
                inputs = {"pixel_values": torch.rand(3, 3, 8, 8)}
            with torch.no_grad():
                weights = model(**inputs, output_attentions=True).attentions
            reports = inspect_layers(convert(model), rows_of(inputs))
            for report, each in zip(reports, weights):
                entropy = torch.special.entr(each).sum(dim=-1).mean(dim=(0, 2))
                assert report.entropy == pytest.approx(entropy.tolist(), rel=1e-4)
        projection = theirs[2].h[1].attn.c_attn.weight  # (D, 3·D)
        query, key = projection[:, 4:8].double(), projection[:, 20:24].double()  # the second head
        values = torch.linalg.svdvals(query @ key.T)
        second = reports[1].query_key[1]
        assert second.rank == 4 and second.condition_number == pytest.approx((values[0] / values[3]).item(), rel=1e-4)

    def test_change_without_a_head(self):
        """As the attention itself changes where it reads zeros in the head's place."""
        model = bert().eval()
        inputs = token_rows()
        reports = inspect_layers(model, rows_of(inputs))
        outputs = []
        attention = model.layers[1].self_attn
        attention.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
        with torch.no_grad():
            model(**inputs)
            attention.o_proj.register_forward_pre_hook(
                lambda module, args: (
                    torch.cat([args[0][..., :8], 0 * args[0][..., 8:12], args[0][..., 12:]], dim=-1),
                )
            )
            model(**inputs)
        before, after = (output.flatten(0, 1) for output in outputs)
        change = (after - before).square().sum() / (before - before.mean(dim=0)).square().sum()
        assert reports[1].removal[2] == pytest.approx(change.item(), rel=1e-4)

    def test_padding_is_left_out(self):
        model = bert().eval()
        ids = token_rows(2)["input_ids"]
        mask = torch.ones_like(ids)
        mask[1, 7:] = 0
        padded = inspect_layers(model, rows_of({"input_ids": ids, "attention_mask": mask}))
        alone = inspect_layers(model, [{"input_ids": ids[:1]}, {"input_ids": ids[1:, :7]}])
        assert padded == alone and padded[0].tokens == [12, 7]

    def test_what_cannot_be_inspected(self):
        model = bert()
        with pytest.raises(ValueError, match=r"row 1 has too few tokens \(3\): layer 0 with num_heads=4 needs"):
            inspect_layers(model, rows_of(token_rows(2, 3)))
        with pytest.raises(ValueError, match="layers: there is no layer 2, expected 0 to 1"):
            inspect_layers(model, rows_of(token_rows()), layers=[0, 2])
        assert model.training


@pytest.fixture
def leaner(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["inspect", *map(str, words)])


@pytest.fixture
def theirs(tmp_path):
    """Folders of transformers' own BERT and ViT, and rows for them."""
    tokenizer = train_tokenizer(documents(40, 0)["text"], "wordpiece", 300, 24, "bert")
    transformers.BertModel(transformers.BertConfig(**{**SIZES, **TEXT, "vocab_size": 300})).save_pretrained("bert")
    tokenizer.save_pretrained("bert")
    config = transformers.ViTConfig(image_size=8, patch_size=4, **SIZES)
    transformers.ViTForImageClassification(config).save_pretrained("vit")
    transformers.ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained("vit")
    documents(20, 1).to_parquet("texts.parquet")
    pictures(20, 1).to_parquet("pictures.parquet")


class TestCommand:
    def test_a_published_model_on_rows_of_its_recipe(self, leaner):
        """κ of the head outputs is that of its results.json."""
        result = leaner(LISTOPS, "--json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert document["data"] == "listops-short (test)" and len(document["tokens"]) == 8
        for layer, expected in zip(document["layers"], results_in(LISTOPS / "results.json").condition["end"]):
            found = sorted(spectrum["condition_number"] for spectrum in layer["head_outputs"])
            assert found[3] == pytest.approx(expected, rel=0.02)  # the lower of the two in the middle, as there

    def test_models_of_transformers(self, leaner, theirs):
        result = leaner("bert", "--data", "texts.parquet", "--rows", 2)
        assert result.exit_code == 0, result.output
        assert "bert on texts.parquet (train): 2 rows of " in result.stdout
        result = leaner("vit", "--data", "pictures.parquet", "--layers", "1", "--json")
        (layer,) = json.loads(result.stdout)["layers"]
        assert layer["layer"] == 1 and layer["value"]["size"] == 16

    def test_heads_that_say_nothing(self, leaner, theirs):
        """Null in JSON: a head that is the same for every token, and a matrix of lost rank, which the table names."""
        model = bert(per_layer_config={0: {"num_attention_heads": 1}}, vocab_size=300)
        with torch.no_grad():
            model.layers[1].self_attn.v_proj.weight[:4] = 0
        model.save_pretrained("bert")
        second = json.loads(leaner("bert", "--data", "texts.parquet", "--json").stdout)["layers"][1]
        assert second["similarity"][0][1] is None and second["similarity"][1][2] is not None
        value = second["value"]
        assert value["condition_number"] is None and (value["rank"], value["size"]) == (12, 16)
        assert "rank 12 of 16" in leaner("bert", "--data", "texts.parquet").stdout

    @pytest.mark.parametrize(
        "words, message",
        [
            ("bert --data pictures.parquet", "--column: no column fits; name one of image"),
            ("bert", "--data: missing; expected a file or dataset with rows for bert"),
            ("bert --data texts.parquet --layers 2", "--layers: there is no layer 2, expected 0 to 1"),
            ("weightless --data texts.parquet", "weightless: "),
        ],
    )
    def test_what_is_refused(self, leaner, theirs, words, message):
        """In one line."""
        shutil.copytree("bert", "weightless", ignore=shutil.ignore_patterns("*.safetensors"))
        result = leaner(*words.split())
        assert result.exit_code == 1, result.output
        assert message in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
