"""LeanViT."""

import pytest
import torch
from common import TOLERANCE, WRONG, ModelTests, distance

from modeling_leaner import LeanViTBackbone, LeanViTConfig, LeanViTForImageClassification, LeanViTModel
from modeling_leaner.conversion import convert


class TestLeanViT(ModelTests):
    config_class = LeanViTConfig
    base_class = LeanViTModel
    logits_class = LeanViTForImageClassification
    heads = {"ImageClassification": LeanViTForImageClassification}
    shapes = {
        "base": {"image_size": 24, "patch_size": 8, "num_labels": 5},
        "free": {"image_size": [16, 24], "patch_size": [4, 8], "num_labels": 5, "head_dim": 12, "qkv_bias": False},
        "per-layer": {
            "image_size": 24,
            "patch_size": 8,
            "num_labels": 5,
            "per_layer_config": {0: {"num_attention_heads": 2}, 2: {"num_attention_heads": 6}},
        },
    }

    def inputs(self, head=None):
        generator = torch.Generator().manual_seed(0)
        height, width = self.image
        inputs = {"pixel_values": torch.randn(2, 3, height, width, generator=generator)}
        return {**inputs, "labels": torch.tensor([1, 4])} if head else inputs

    image = (24, 24)

    @pytest.fixture(autouse=True)
    def image_of_the_shape(self, request):
        shape = getattr(request.node, "callspec", None) and request.node.callspec.params.get("shape")
        self.image = self.config(shape or "base").image_shape

    def padded(self):
        inputs = self.inputs()
        tokens = self.config_class(image_size=list(self.image), patch_size=[8, 8]).default_length
        if self.image != (24, 24):
            tokens = 1 + (16 // 4) * (24 // 8)
        mask = torch.ones(2, tokens, dtype=torch.long)
        mask[0, 4:] = 0
        return {**inputs, "attention_mask": mask}, torch.ones(2, dtype=torch.bool)

    def test_masked_patches_do_not_matter(self):
        model = self.build("base")
        inputs, _ = self.padded()
        expected = model(**inputs).logits[0]
        changed = inputs["pixel_values"].clone()
        changed[0, :, 16:] += 5.0  # the last row of patches: hidden by the mask
        assert distance(model(**{**inputs, "pixel_values": changed}).logits[0], expected) < TOLERANCE
        assert distance(model(pixel_values=changed).logits[0], expected) > WRONG

    def test_interpolates_positions(self):
        model = self.build("base")
        same = torch.randn(1, 3, 24, 24)
        assert torch.equal(model(same, interpolate_pos_encoding=True).logits, model(same).logits)
        for height, width in ((40, 24), (16, 32)):
            images = torch.randn(2, 3, height, width)
            expected = convert(model)(images, interpolate_pos_encoding=True).logits  # transformers' ViT
            assert distance(model(images, interpolate_pos_encoding=True).logits, expected) < TOLERANCE

    def test_what_is_refused(self):
        model = self.build("base")
        images = torch.randn(2, 3, 24, 24)
        with pytest.raises(ValueError, match=r"\[1, 1, 24, 24\], expected channels, height, width of \[3, 24, 24\]"):
            model(torch.randn(1, 1, 24, 24))
        with pytest.raises(ValueError, match="3, 32, 24.*, or multiples of patch_size=8 with interpolate"):
            model(torch.randn(1, 3, 32, 24))
        with pytest.raises(ValueError, match="3, 30, 24.*, expected"):
            model(torch.randn(1, 3, 30, 24), interpolate_pos_encoding=True)
        with pytest.raises(ValueError, match=r"labels\[1\] is 5, expected 0..4 \(num_labels=5\)"):
            model(images, labels=torch.tensor([0, 5]))
        with pytest.raises(ValueError, match=r"attention_mask is \[2, 3\], expected \[2, 10\]"):
            model(images, attention_mask=torch.ones(2, 3))

    def test_another_depth_is_not_an_error_of_the_backbone(self, tmp_path):
        """The last stage of a saved configuration is its default; only one that somebody chose is kept."""
        saved = self.config("base")
        depth = saved.num_hidden_layers
        self.logits_class(saved).save_pretrained(tmp_path)
        assert len(self.logits_class.from_pretrained(tmp_path, num_hidden_layers=depth - 1).model.layers) == depth - 1
        for other in (depth - 1, depth + 1):
            config = self.config_class.from_pretrained(tmp_path, num_hidden_layers=other)
            assert config.out_features == [f"stage{other}"] and config.out_indices == [other]
        chosen = self.config("base", out_features=["stage1"])
        chosen.save_pretrained(tmp_path)
        assert self.config_class.from_pretrained(tmp_path, num_hidden_layers=depth + 1).out_features == ["stage1"]

    def test_backbone_loads_a_classifier(self, shape, tmp_path):
        classifier = self.build(shape)
        classifier.save_pretrained(tmp_path)
        backbone = LeanViTBackbone.from_pretrained(tmp_path, out_features=["stem", "stage2"]).eval()
        inputs = self.inputs()
        output = backbone(**inputs)
        rows, columns = (a // b for a, b in zip(classifier.config.image_shape, classifier.config.patch_shape))
        assert [map_.shape for map_ in output.feature_maps] == [(2, 32, rows, columns)] * 2
        assert backbone.channels == [32, 32]
        states = classifier(**inputs, output_hidden_states=True).hidden_states
        expected = classifier.model.norm(states[2])[:, 1:].transpose(1, 2).reshape(2, 32, rows, columns)
        assert torch.equal(output.feature_maps[1], expected)

    def test_hidden_patches_are_contiguous(self):
        model = self.build("base")
        seen = []
        model.model.layers[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].is_contiguous()))
        model(**self.inputs())
        assert seen == [True]
