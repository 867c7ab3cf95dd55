"""What other libraries do with the models, each compared with the model itself.

A test is skipped only where its library is absent: `make test-clients` installs them all, at the versions of
constraints.txt. ONNX is in test_export.py; compilation, static caches and continuous batching in the
families' tests; two processes in test_parallel.py and test_processes.py.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from common import distance
from datasets import Dataset
from encoders import save_sentence_encoder
from modeling_leaner.training.data.tokenizer import train_tokenizer
from PIL import Image
from safetensors.torch import load_file
from test_remote_code import FAMILIES
from training_data import documents, labelled
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import modeling_leaner


ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
TEXTS = documents(40, 0)["text"]
PUPPY = "the small dog likes a red house"
SIZES = {"vocab_size": 300, "max_position_embeddings": 64}
TASKS = {  # pipeline → families, with the end of the class's name
    "text-generation": ("gpt", "ForCausalLM"),
    "fill-mask": ("bert", "ForMaskedLM"),
    "text-classification bert": ("bert", "ForSequenceClassification"),
    "text-classification gpt": ("gpt", "ForSequenceClassification"),
    "token-classification bert": ("bert", "ForTokenClassification"),
    "feature-extraction bert": ("bert", "Model"),
    "image-classification": ("vit", "ForImageClassification"),
    "image-feature-extraction": ("vit", "Model"),
}


def save(family: str, head: str, folder: Path, **changes: object) -> transformers.PreTrainedModel:
    """A model that says something, in a folder with its tokenizer or image processor."""
    tests = FAMILIES[family]()
    name = f"{tests.base_class.__name__.removesuffix('Model')}{head}"
    if family != "vit":
        changes = {**SIZES, **changes}
    model = tests.build("base", getattr(modeling_leaner, name), **changes)
    model.save_pretrained(folder)
    if family == "vit":
        height, width = model.config.image_shape
        transformers.ViTImageProcessorPil(size={"height": height, "width": width}).save_pretrained(folder)
    else:
        kind = {"bert": "wordpiece", "gpt": "byte-bpe"}[family]
        train_tokenizer(TEXTS, kind, 300, 64, family).save_pretrained(folder)
    return model


def by_hand(model: transformers.PreTrainedModel, folder: Path, *texts: str) -> torch.Tensor:
    """The model's own logits, or last states, of one text or a pair."""
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("task", TASKS)
def test_pipelines(task, tmp_path):
    """Of every head that has one in transformers 5: question answering and multiple choice have none any more."""
    family, head = TASKS[task]
    model = save(family, head, tmp_path)
    pipe = transformers.pipeline(task.split()[0], model=str(tmp_path), trust_remote_code=True)
    tokenizer = pipe.tokenizer
    if family == "vit":
        image = Image.effect_mandelbrot((40, 36), (-2, -1.5, 1, 1.5), 60).convert("RGB")
        processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path)
        said = pipe(image)
        with torch.no_grad():
            expected = model(**processor(image, return_tensors="pt"))[0]
    else:
        text = PUPPY.replace("red", tokenizer.mask_token) if task == "fill-mask" else PUPPY
        expected = by_hand(model, tmp_path, text)
    if task in ("image-classification", "text-classification bert", "text-classification gpt"):
        best = said[0] if family == "vit" else pipe(PUPPY)[0]
        assert best["label"] == model.config.id2label[expected[0].argmax().item()]
        assert best["score"] == pytest.approx(expected[0].softmax(-1).max().item(), abs=1e-5)
    elif task == "text-generation":
        said = pipe(PUPPY, max_new_tokens=6, do_sample=False, return_tensors=True)
        ids = tokenizer(PUPPY, return_tensors="pt")["input_ids"]
        expected = FAMILIES["gpt"]().continue_by_hand(model, ids, 6)[0]
        got = said[0]["generated_token_ids"]
        assert len(got) > ids.shape[1] and list(got) == expected[: len(got)].tolist()
    elif task == "fill-mask":
        masked = tokenizer(text)["input_ids"].index(tokenizer.mask_token_id)
        best = expected[0, masked].topk(5).indices.tolist()
        assert [each["token"] for each in pipe(text)] == best
    elif task.startswith("token-classification"):
        expected = expected[0].argmax(-1)
        said = {each["index"]: each["entity"] for each in pipe(PUPPY, ignore_labels=[])}
        assert len(said) >= 7
        assert all(model.config.id2label[expected[index].item()] == entity for index, entity in said.items())
    else:
        assert distance(torch.tensor(said if family == "vit" else pipe(PUPPY)), expected) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_lora(family, tmp_path):
    """Trained, saved, loaded, merged."""
    peft = pytest.importorskip("peft")
    tests = FAMILIES[family]()
    head = next(iter(tests.heads))
    inputs = tests.inputs(head)
    model_class = tests.heads[head]
    tests.build("per-layer", model_class).save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(
        model_class.from_pretrained(tmp_path / "base"), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    )
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert 0 < sum(weight.numel() for weight in weights) < 0.5 * model.num_parameters()
    before = model.eval()(**inputs)
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    for _ in range(8):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = model(**inputs)
    assert trained.loss < before.loss and distance(trained[1], before[1]) > 1e-2
    model.save_pretrained(tmp_path / "adapter")
    base = model_class.from_pretrained(tmp_path / "base").eval()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert distance(loaded(**inputs)[1], trained[1]) < 1e-5
    merged = loaded.merge_and_unload()
    assert type(merged) is model_class
    assert distance(merged(**inputs)[1], trained[1]) < 1e-4
    merged.save_pretrained(tmp_path / "merged")
    assert distance(model_class.from_pretrained(tmp_path / "merged").eval()(**inputs)[1], trained[1]) < 1e-4


def test_trl_fine_tunes(tmp_path):
    """SFTTrainer on a folder's id, its loss on completions alone, and what it saved loads."""
    trl = pytest.importorskip("trl")
    save("gpt", "ForCausalLM", tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = Dataset.from_dict({"prompt": [PUPPY] * 16, "completion": [" and a big river"] * 16})
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "run"),
        max_steps=12,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    trainer = trl.SFTTrainer(model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0], losses
    trainer.save_model(tmp_path / "tuned")
    tuned = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned").eval()
    ids = tokenizer(PUPPY, return_tensors="pt")["input_ids"]
    weights = tuned.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in trainer.model.state_dict().items())
    assert torch.isfinite(tuned(ids).logits).all()


TASK = """
task: dogs
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_target: answer
doc_to_choice: ["river", "house", "dog"]
metric_list: [{{metric: acc}}]
"""


def test_lm_eval_scores(tmp_path):
    """Its accuracy on a task of its own kind is that of the log-likelihoods by hand."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = save("gpt", "ForCausalLM", tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [" ".join(text.split()[:6]) for text in TEXTS[:24]]
    choices = ("river", "house", "dog")
    best = []
    for text in texts:
        scores = []
        for choice in choices:
            ids = tokenizer(f"{text} {choice}", return_tensors="pt")["input_ids"]
            start = len(tokenizer(text)["input_ids"])
            with torch.no_grad():
                log_probabilities = model(ids).logits[0, :-1].log_softmax(-1)
            scores.append(log_probabilities.gather(-1, ids[0, 1:, None])[start - 1 :].sum().item())
        best.append(max(range(3), key=scores.__getitem__))
    answers = [row % 3 for row in range(24)]
    rows = [{"text": text, "answer": answer} for text, answer in zip(texts, answers)]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "dogs.yaml").write_text(TASK.format(rows=tmp_path / "rows.json"))
    results = lm_eval.simple_evaluate(
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu"),
        tasks=["dogs"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    right = sum(map(int.__eq__, best, answers))
    assert results["results"]["dogs"]["acc,none"] == pytest.approx(right / 24)
    assert len(set(best)) > 1


class TestSentenceTransformers:
    def test_vectors(self, tmp_path):
        """Mean over tokens, normalised, of padded rows, by the folder's own modules."""
        library = pytest.importorskip("sentence_transformers")
        folder = save_sentence_encoder(tmp_path / "encoder")
        encoder = library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        texts = [PUPPY, "the river", " ".join(TEXTS[0].split()[:9])]
        model = transformers.AutoModel.from_pretrained(folder).eval()
        inputs = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
        mask = inputs["attention_mask"][..., None]
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
        assert distance(torch.tensor(encoder.encode(texts)), expected) < 1e-5

    def test_cross_encoder(self, tmp_path):
        library = pytest.importorskip("sentence_transformers")
        model = save("bert", "ForSequenceClassification", tmp_path, num_labels=1)
        scores = library.CrossEncoder(str(tmp_path), device="cpu", trust_remote_code=True).predict(
            [(PUPPY, "a cat")], activation_fn=torch.nn.Identity()
        )
        assert scores[0] == pytest.approx(by_hand(model, tmp_path, PUPPY, "a cat").item(), rel=1e-4)

    def test_training(self, tmp_path):
        library = pytest.importorskip("sentence_transformers")
        from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

        folder = save_sentence_encoder(tmp_path / "encoder")
        encoder = library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        rows = labelled(16, 3, ("sentence1", "sentence2"), 0)
        arguments = library.SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "run"), max_steps=4, learning_rate=1e-2, report_to="none", use_cpu=True
        )
        before = encoder.encode(PUPPY)
        library.SentenceTransformerTrainer(encoder, arguments, rows, loss=CosineSimilarityLoss(encoder)).train()
        after = encoder.encode(PUPPY)
        encoder.save_pretrained(str(tmp_path / "tuned"))
        again = library.SentenceTransformer(str(tmp_path / "tuned"), device="cpu", trust_remote_code=True)
        assert abs(after - before).max() > 1e-3 and abs(again.encode(PUPPY) - after).max() < 1e-5


def torchao(name, **options):
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(getattr(quantization, name)(**options))


def bitsandbytes(**options):
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(**options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("make", "is_stored", "least", "most"),
    [
        (lambda: torchao("Int8WeightOnlyConfig"), lambda weight: "Int8" in type(weight).__name__, 1e-5, 0.05),
        (lambda: bitsandbytes(load_in_8bit=True), lambda weight: weight.dtype == torch.int8, 1e-5, 0.05),
    ],
    ids=["torchao", "bitsandbytes"],
)
def test_quantised(family, make, is_stored, least, most):
    """A trained miniature in few bits, and how far its logits are from those that it gave."""
    expected = load_file(GOLDEN / family / "expected.safetensors")
    inputs = {name: tensor for name, tensor in expected.items() if name not in ("logits", "generated")}
    model_class = FAMILIES[family].logits_class
    if family == "bert":
        model_class = modeling_leaner.LeanBERTForSequenceClassification
    small = model_class.from_pretrained(GOLDEN / family, quantization_config=make()).eval()
    assert is_stored(small.base_model.layers[0].mlp.fc1.weight)
    with torch.no_grad():
        assert least < distance(small(**inputs).logits.float(), expected["logits"]) < most


def test_attention_of_others():
    """As vLLM puts its own in: every layer calls it once, with what was given to the base model."""
    calls = []

    def attend(module, query, key, value, attention_mask, scaling=None, attention_instances=None, **kwargs):
        calls.append((module.layer_idx, query.shape, scaling == module.scaling, attention_instances))
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, is_causal=module.is_causal)

    transformers.AttentionInterface.register("others", attend)
    for family in ("bert", "gpt"):
        base = FAMILIES[family]().build("per-layer").base_model
        ids = torch.arange(5, 15)[None]
        inputs = {"input_ids": ids, "position_ids": torch.arange(10)[None], "return_dict": False}
        calls.clear()
        instances = object()
        with torch.no_grad():
            expected = base(**inputs)[0]
            base.set_attn_implementation("others")
            assert distance(base(**inputs, attention_instances=instances)[0], expected) < 1e-5
        size = base.config.head_dim
        heads = base.config.heads_per_layer
        assert calls == [(layer, (1, each, 10, size), True, instances) for layer, each in enumerate(heads)]
