"""`leaner publish-encoder`: from parent, cut and run to a folder that a stranger uses; nothing half-written."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from encoders import compare_by_words, cut_and_recover, run_leaner, save_sentence_encoder, write_rows
from hub_server import LocalHub, reached
from huggingface_hub import ModelCard, snapshot_download
from modeling_leaner.training.publishing import index, publish_encoder, push, verify, verify_encoder
from modeling_leaner.training.publishing.cards import write_card
from modeling_leaner.training.publishing.folders import published_folders, results_in
from modeling_leaner.training.records import PublishedEncoder
from modeling_leaner.training.running import reevaluate
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from modeling_leaner import hub as hub_files
from modeling_leaner.files import sha256


NAME = "tiny-encoder"
BASE = "owner/parent"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Parent, cut and run, and the words of --data."""
    folder = tmp_path_factory.mktemp("encoders")
    return cut_and_recover(folder), write_rows(folder / "rows")


def publish_words(made, *more):
    folders, rows = made
    words = ["publish-encoder", NAME, *folders, "--base-model", BASE, "--license", "mit"]
    return [*words, "--data", *rows, "--rounds", 3, *more]


@pytest.fixture(scope="module")
def cards(made, tmp_path_factory, warm_stranger):
    """model_cards/ with the published folder."""
    folder = tmp_path_factory.mktemp("clone")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run_leaner(*publish_words(made))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == f"model_cards/{NAME}"
    return folder / "model_cards"


@pytest.fixture
def folder(cards, tmp_path, monkeypatch):
    """A copy of the published folder in model_cards/ of the working directory, to be changed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cards, tmp_path / "model_cards")
    return Path("model_cards") / NAME


def given_of(made):
    return dict(word.split("=") for word in made[1])


def test_the_folder_is_whole(cards):
    names = {path.relative_to(cards / NAME).as_posix() for path in (cards / NAME).rglob("*") if path.is_file()}
    sentence_transformers = {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
    assert sentence_transformers | {"README.md", "results.json", "slim.json", "recipe.yaml", "tokenizer.json"} <= names
    assert not [name for name in names if "checkpoint-" in name or "started" in name]
    assert published_folders(cards) == [cards / NAME]
    assert not [path for path in cards.iterdir() if path.name.startswith(".")]


def test_weights_are_stored_in_16_bits_and_load_in_32(cards, made):
    stored = load_file(cards / NAME / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    model = AutoModel.from_pretrained(cards / NAME, add_pooling_layer=False)
    assert model.dtype == torch.float32
    trained = AutoModel.from_pretrained(made[0][2], add_pooling_layer=False).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name].half().float())


def test_the_format_that_loses_less_is_chosen(made):
    """float16 of ordinary weights; bfloat16 where one is beyond the range of float16."""
    encoder = publish_encoder.load_beside([str(made[0][2])])[0][0]
    rows = publish_encoder.load_rows(given_of(made), ["cosine"])
    chosen, stored = publish_encoder.choose_dtype(encoder, rows, 24)
    assert chosen == torch.float16 and stored.cosine["float16"] > stored.cosine["bfloat16"] > 0.999
    encoder.model.layers[0].mlp.fc1.weight.data[0, 0] = 1e5
    chosen, stored = publish_encoder.choose_dtype(encoder, rows, 24)
    assert chosen == torch.bfloat16 and stored.dtype == "bfloat16" and stored.cosine["float16"] == 0


def test_scores_are_those_of_the_stored_weights(cards, made):
    results = results_in(cards / NAME / "results.json")
    assert isinstance(results, PublishedEncoder)
    output = cards.parent / "again.json"
    words = [made[0][0], made[0][1], cards / NAME, "--data", *made[1], "--test", "--rounds", 3, "--output", output]
    assert compare_by_words(*words).exit_code == 0
    again = json.loads(output.read_text())
    for stated, found in zip(results.comparison.models, again["models"]):
        assert (stated.model, stated.scores) == (found["model"], pytest.approx(found["scores"], abs=1e-6))
    assert results.comparison.models[2].kept_layers == again["models"][2]["kept_layers"]


def test_both_ways_cut_at_the_same_length(cards):
    """As sentence-transformers does with the parent, at 24, not at the 20 of its tokenizer.json."""
    folder = cards / NAME
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
    document = json.loads((folder / "tokenizer.json").read_text())
    assert document["truncation"]["max_length"] == 24 and document["padding"] is None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 24
    assert len(tokenizer("cat " * 50, truncation=True)["input_ids"]) == 24


def test_tokens_and_core_hours(cards, made):
    """Four steps of eight of the training rows, evenly over all."""
    results = results_in(cards / NAME / "results.json")
    train = Dataset.from_parquet(str(made[0][0].parent / "train.parquet"))["text"]
    tokenizer = AutoTokenizer.from_pretrained(made[0][2])
    read = [train[place * 40 // 32] for place in range(32)]
    lengths = [len(ids) for ids in tokenizer(read, truncation=True, max_length=16, padding=False)["input_ids"]]
    assert results.tokens == sum(lengths)
    assert results.core_hours == results.train.seconds * results.environment.threads / 3600


class TestCard:
    def test_what_the_hub_reads(self, cards):
        card = ModelCard.load(cards / NAME / "README.md")
        results = results_in(cards / NAME / "results.json")
        assert card.data.base_model == BASE and card.data.base_model_relation == "finetune"
        assert card.data.license == "mit" and card.data.library_name == "sentence-transformers"
        assert card.data.datasets == ["LTCB/enwik8"] and card.data.language == "en"
        assert {"sentence-transformers", "modeling_leaner", "custom_code", "pruned"} <= set(card.data.tags)
        own = results.own_scores.scores
        found = {each.metric_name: each.metric_value for each in card.data.eval_results}
        assert len(found) == 4
        assert found["STS-B test, Spearman"] == pytest.approx(own["stsb_test"], abs=1e-3)
        assert found["QNLI retrieval, MRR@10"] == pytest.approx(own["qnli"], abs=1e-3)

    def test_no_path_of_this_machine(self, cards):
        for path in (cards / NAME).rglob("*"):
            if path.suffix in (".json", ".md", ".yaml", ".jsonl"):
                text = path.read_text()
                assert not re.search(r"(?<![\w/:.])/(home|tmp|root|Users|mnt|var|work)/", text), path

    @pytest.mark.full
    def test_the_snippet_of_transformers(self, cards, tmp_path):
        """In a process that cannot import the package; it prints similarities."""
        text = (cards / NAME / "README.md").read_text()
        code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
        assert code.count(f'"OWNER/{NAME}"') == 1
        hidden = Path(reevaluate.__file__).read_text().split("def reduced")[0]
        program = [hidden, "sys.meta_path.insert(0, NoPackage())", code.replace(f"OWNER/{NAME}", str(cards / NAME))]
        done = subprocess.run(
            [sys.executable, "-I", "-c", "\n".join(program)], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.match(r"tensor\(\[-?\d\.\d+, -?\d\.\d+\]", done.stdout)

    @pytest.mark.skipif(
        importlib.util.find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
    )
    def test_the_snippet_of_sentence_transformers(self, cards):
        """It prints similarities; its vectors are those of the mean over tokens, of length one."""
        from sentence_transformers import SentenceTransformer

        text = (cards / NAME / "README.md").read_text()
        code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
        names = {}
        exec(code.replace(f"OWNER/{NAME}", str(cards / NAME)), names)
        assert names["embeddings"].shape == (3, 32)
        model = SentenceTransformer(str(cards / NAME), trust_remote_code=True)
        assert model.max_seq_length == 24
        texts = ["the cat sees a dog", "cat " * 40]
        tokens = AutoTokenizer.from_pretrained(cards / NAME)(texts, truncation=True, padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(cards / NAME, add_pooling_layer=False)(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((states * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)
        np.testing.assert_allclose(model.encode(texts), expected.detach().numpy(), atol=1e-5)


class TestVerified:
    def test_all_scores_are_found_again(self, folder, made):
        rows = [*made[1], f"parent={made[0][0]}"]
        result = run_leaner("verify", folder, "--data_files", *rows)
        assert result.exit_code == 0, result.output
        own = results_in(folder / "results.json").own_scores.scores
        for name, value in own.items():
            assert f"{name} {value:.4f}" in result.stdout
        assert "not computed again" not in result.stdout

    @pytest.mark.full
    def test_without_the_parent(self, folder, made):
        said = verify.verify(folder, {name: [path] for name, path in given_of(made).items()})
        assert said.endswith("; not computed again: cosine")
        said = verify.verify(folder, {name: [path] for name, path in given_of(made).items()}, short=True)
        assert said.startswith("stsb ") and said.endswith("not computed again: stsb_test, qnli, sst2, cosine")

    def refused(self, folder, made, message):
        result = run_leaner("verify", folder, "--data_files", *made[1])
        assert result.exit_code == 1 and "1 of 1 failed" in result.stderr
        assert message in result.stderr, result.stderr

    def test_another_score(self, folder, made):
        """In the results and, by leaner card, in the card: only the weights say otherwise."""
        document = json.loads((folder / "results.json").read_text())
        document["comparison"]["models"][2]["scores"]["stsb"] -= 0.5
        (folder / "results.json").write_text(json.dumps(document))
        write_card(folder)
        self.refused(folder, made, "comparison.models.2.scores.stsb is")

    def test_other_weights(self, folder, made):
        weights = load_file(folder / "model.safetensors")
        save_file({name: tensor * 2 for name, tensor in weights.items()}, folder / "model.safetensors")
        self.refused(folder, made, "model.safetensors: sha256 is")

    def test_another_card(self, folder, made):
        with (folder / "README.md").open("a") as card:
            card.write("better than its parent\n")
        self.refused(folder, made, "README.md: not what leaner publish writes")

    def test_an_unknown_file(self, folder, made):
        (folder / "notes.txt").write_text("x")
        self.refused(folder, made, "notes.txt: not a file of a published folder")

    def test_a_missing_file(self, folder, made):
        (folder / "modules.json").unlink()
        self.refused(folder, made, "modules.json: missing")

    def test_another_code(self, folder, made):
        with (folder / "layers_leaner.py").open("a") as code:
            code.write(" ")
        self.refused(folder, made, "layers_leaner.py: differs")

    def test_another_recipe(self, folder, made):
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"seed": 7}))
        self.refused(folder, made, "recipe.yaml: not the recipe of")

    def test_other_rows(self, folder, made, tmp_path):
        write_rows(tmp_path / "rows")
        shutil.copyfile(tmp_path / "rows/stsb/test.parquet", tmp_path / "rows/stsb/validation.parquet")
        rows = [f"stsb={tmp_path / 'rows/stsb'}", *made[1][1:]]
        result = run_leaner("verify", folder, "--data_files", *rows)
        assert result.exit_code == 1 and "comparison.data.stsb: 24 rows of nyu-mll/glue with" in result.stderr

    def test_an_unknown_name(self, folder, made):
        result = run_leaner("verify", folder, "--data_files", "mnli=x")
        assert result.exit_code == 1
        assert "mnli is no dataset of these folders, expected one of parent, qnli" in result.stderr

    @pytest.mark.full
    def test_the_package_is_not_there(self, folder, monkeypatch):
        """The vectors are made by the folder's own code."""
        broken = (folder / "modeling_lean_bert.py").read_text() + "\nraise ImportError('own code')\n"
        (folder / "modeling_lean_bert.py").write_text(broken)
        with pytest.raises(ValueError, match="without the package failed: ImportError: own code"):
            verify_encoder.stranger_vectors(folder, ["the cat"], 24)


class TestWalkers:
    """Everything that goes over model_cards/ knows the folder."""

    def test_the_index(self, folder):
        text = index.render(Path("model_cards"))
        results = results_in(folder / "results.json")
        parent = results.parent_scores
        own = results.own_scores
        assert [results.parent_scores, results.cut_scores, results.own_scores] == results.comparison.models
        assert f"| [{NAME}]({NAME}) | {BASE} | 2&nbsp;×&nbsp;4 | {own.parameters:,} |" in text
        assert f"{own.scores['qnli']:.3f} ({parent.scores['qnli']:.3f})" in text
        shutil.rmtree(folder)
        assert f"[{NAME}]" not in index.render(Path("model_cards"))

    def test_leaner_publish_renews_it(self, folder):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        (folder / "README.md").write_text("old")
        (folder / "layers_leaner.py").write_text("old")
        result = run_leaner("publish")
        assert result.exit_code == 0, result.output
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    def test_what_is_pushed(self, folder):
        files = push.checked_contents(folder, f"someone/{NAME}")
        assert {"1_Pooling/config.json", "modules.json", "sentence_bert_config.json", "slim.json"} <= files.keys()
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert there == files.keys() and not hub_files.staying(folder)
        assert f"someone/{NAME}".encode() in files["README.md"] and b"OWNER/tiny" not in files["README.md"]


class TestRefused:
    """One line each; no folder, no scratch."""

    @pytest.fixture
    def refuse(self, made, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        def refuse(message, *words):
            before = sorted(Path().rglob("model_cards/**"))
            result = run_leaner(*words)
            lines = [line for line in result.stderr.splitlines() if line.startswith("leaner publish-encoder: ")]
            assert result.exit_code == 1 and len(lines) == 1, result.output
            assert message in lines[0], lines[0]
            assert sorted(Path().rglob("model_cards/**")) == before

        return refuse

    def words(self, made, parent=None, cut=None, run=None):
        folders = [given or held for given, held in zip((parent, cut, run), made[0])]
        return publish_words((folders, made[1]))

    def test_another_teacher(self, refuse, made, tmp_path):
        save_sentence_encoder(tmp_path / "other", seed=5)
        recorded = json.loads((made[0][1] / "slim.json").read_text())
        shutil.copytree(made[0][1], tmp_path / "cut")
        (tmp_path / "cut" / "slim.json").write_text(json.dumps(recorded | {"parent": str(tmp_path / "other")}))
        words = self.words(made, parent=tmp_path / "other", cut=tmp_path / "cut")
        refuse("results.json: recipe.teacher is", *words)

    def test_a_parent_that_was_replaced(self, refuse, made, tmp_path):
        recorded = json.loads((made[0][1] / "slim.json").read_text())
        assert recorded["parent_weights_sha256"] == sha256(made[0][0] / "model.safetensors")
        cut = tmp_path / made[0][1].name
        shutil.copytree(made[0][1], cut)
        (cut / "slim.json").write_text(json.dumps(recorded | {"parent_weights_sha256": "0" * 64}))
        refuse(f"{cut}/slim.json: parent_weights_sha256 is 0000", *self.words(made, cut=cut))

    def test_another_parent(self, refuse, made, tmp_path):
        save_sentence_encoder(tmp_path / "other", seed=5)
        refuse("slim.json: parent is", *self.words(made, parent=tmp_path / "other"))

    def test_another_cut(self, refuse, made, tmp_path):
        shutil.copytree(made[0][1], tmp_path / "cut")
        weights = load_file(tmp_path / "cut" / "model.safetensors")
        save_file({name: 2 * tensor for name, tensor in weights.items()}, tmp_path / "cut" / "model.safetensors")
        refuse("results.json: shape is", *self.words(made, cut=tmp_path / "cut"))

    def test_no_cut(self, refuse, made):
        refuse("slim.json: missing; expected a folder that leaner slim wrote", *self.words(made, cut=made[0][0]))

    def test_no_run(self, refuse, made):
        refuse("results.json: missing; expected the folder of a finished run", *self.words(made, run=made[0][1]))

    def test_another_task(self, refuse, made, tmp_path):
        shutil.copytree(made[0][2], tmp_path / "run")
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        (tmp_path / "run" / "results.json").write_text(json.dumps(results | {"task": "masked-lm"}))
        refuse("task is masked-lm, expected embedding", *self.words(made, run=tmp_path / "run"))

    def test_a_parent_without_sentence_transformers(self, refuse, made, tmp_path):
        shutil.copytree(made[0][0], tmp_path / "plain", ignore=shutil.ignore_patterns("modules.json"))
        refuse("plain: no modules.json; expected an encoder of", *self.words(made, parent=tmp_path / "plain"))

    def test_no_hub_id(self, refuse, made):
        words = [word for word in publish_words(made) if word not in ("--base-model", BASE)]
        refuse("is no Hub id; expected OWNER/NAME of the parent", *words)

    @pytest.mark.parametrize("name", ["Tiny_Encoder", "", "deep/name", "../evil", "/abs"])
    def test_a_name(self, refuse, made, name):
        """Before anything is scored; a path would lead out of model_cards/."""
        words = publish_words(made)
        words[1] = name
        refuse(f"NAME: expected a folder's name of a-z, 0-9, dots and hyphens, got {name!r}", *words)

    def test_a_folder_of_something_else(self, refuse, made):
        (Path("model_cards") / NAME).mkdir(parents=True)
        (Path("model_cards") / NAME / "notes.txt").write_text("mine")
        refuse("there already, and no sentence encoder; choose another", *publish_words(made, "--replace"))

    def test_a_folder_of_a_grid(self, refuse, made):
        published = Path(__file__).parent.parent / "model_cards" / "leanbert-lean-mini-sst2"
        (Path("model_cards") / NAME).mkdir(parents=True)
        shutil.copyfile(published / "results.json", Path("model_cards") / NAME / "results.json")
        refuse("there already, and no sentence encoder; choose another", *publish_words(made, "--replace"))

    def test_a_published_folder(self, refuse, made, cards):
        shutil.copytree(cards, "model_cards")
        refuse("there already; --replace takes it anew", *publish_words(made))

    def test_too_large(self, refuse, made, monkeypatch):
        monkeypatch.setattr(publish_encoder, "MOST_BYTES", 1000)
        Path("model_cards").mkdir()
        refuse(f"model_cards/{NAME}/model.safetensors: ", *publish_words(made))

    def test_a_score_that_is_not_found_again(self, refuse, made, monkeypatch):
        """The folder does not appear."""
        Path("model_cards").mkdir()
        monkeypatch.setattr(verify_encoder, "stranger_vectors", lambda folder, texts, length: np.eye(len(texts)))
        refuse("comparison.models.2.scores.stsb is", *publish_words(made))


@pytest.mark.full
def test_a_run_that_was_trained_in_another_folder(made, tmp_path, monkeypatch):
    """Its files name parent and cut from there; here they are elsewhere, by the same names."""
    (parent, cut, run), rows = made
    shutil.copytree(run, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    results["recipe"]["teacher"] = "runs/parent"
    (tmp_path / "run" / "results.json").write_text(json.dumps(results | {"shape": "runs/cut"}))
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    recipe |= {"teacher": "runs/parent", "shape": "runs/cut"}
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.chdir(tmp_path)
    result = run_leaner(*publish_words(((parent, cut, tmp_path / "run"), rows)))
    assert result.exit_code == 0, result.output
    models = results_in(Path("model_cards") / NAME / "results.json").comparison.models
    assert models[2].kept_layers == models[1].kept_layers is not None


@pytest.mark.full
def test_replace_takes_it_anew(folder, made):
    before = results_in(folder / "results.json")
    (folder / "README.md").write_text("old")
    result = run_leaner(*publish_words(made, "--replace"))
    assert result.exit_code == 0, result.output
    assert results_in(folder / "results.json").weights_sha256 == before.weights_sha256
    assert (folder / "README.md").read_text().startswith("---")


def test_pushed_and_pulled(folder, tmp_path):
    """All of it arrives, in the owner's name, and comes back as it was sent."""
    with LocalHub() as hub, reached(hub, tmp_path / "home"):
        result = run_leaner("push", folder, f"someone/{NAME}")
        assert result.exit_code == 0, result.output
        snapshot_download(f"someone/{NAME}", local_dir=tmp_path / "back")
    sent = push.checked_contents(folder, f"someone/{NAME}")
    for name, content in sent.items():
        expected = content.read_bytes() if isinstance(content, Path) else content
        assert (tmp_path / "back" / name).read_bytes() == expected, name
    assert AutoModel.from_pretrained(tmp_path / "back", add_pooling_layer=False).config.num_hidden_layers == 2
