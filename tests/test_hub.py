"""Models on the Hub: pushed, loaded by strangers; against the local Hub of hub_server.py."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from command import invoked, leaner, refused
from encoders import save_sentence_encoder
from hub_server import TOKEN, LocalHub, Trouble, reached
from huggingface_hub import ModelCard
from modeling_leaner.training import train
from modeling_leaner.training.publishing import push
from modeling_leaner.training.publishing.folders import is_encoder
from safetensors.torch import load_file, save_file
from stranger import answers, logits
from training_data import labelled, write_shape

from modeling_leaner import hub as hub_files


CARDS = Path(__file__).parent.parent / "model_cards"
FOLDERS = sorted(path.parent for path in CARDS.glob("*/config.json"))
OF_GRIDS = [folder for folder in FOLDERS if not is_encoder(folder)]
SMALLEST = CARDS / "leanvit-lean-mini-cifar10"
ONE_PER_FAMILY = [SMALLEST, CARDS / "leanbert-lean-mini-listops", CARDS / "leangpt-mini-tinystories"]
STATE = re.compile(r"training_args|optimizer|scheduler|rng_state|trainer_state|checkpoint-|\.lock|started\.json|\.bin")


@pytest.fixture
def hub():
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def here(hub, tmp_path):
    """This process knows the Hub and has a token."""
    with reached(hub, tmp_path / "home"):
        yield hub


def auto_class_of(folder: Path) -> str:
    """The Auto class of a published folder's head."""
    config = json.loads((folder / "config.json").read_text())
    (kind,) = config["architectures"]
    return next(name for name, target in config["auto_map"].items() if target.endswith(f".{kind}"))


def outputs_of(folder: Path, file: Path) -> Path:
    """Inputs for a folder's model, and what the folder gives for them, in a file."""
    model = getattr(transformers, auto_class_of(folder)).from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(7)
    if hasattr(model.config, "image_size"):
        size = model.config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs = {"pixel_values": torch.randn(2, model.config.num_channels, height, width, generator=generator)}
    else:
        inputs = {"input_ids": torch.randint(5, model.config.vocab_size, (2, 24), generator=generator)}
    with torch.no_grad():
        expected = logits(model(**inputs))
    save_file({**inputs, "expected": expected.contiguous().clone()}, file)
    return file


def changed_copy(folder: Path, target: Path) -> Path:
    """Another version of a folder that holds together: other weights, and a card that says so."""
    shutil.copytree(folder, target)
    weights = {name: 1.5 * tensor for name, tensor in load_file(target / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "results.json").unlink()  # of the other weights
    (target / "README.md").write_text((target / "README.md").read_text() + "\nAnother version.\n")
    return target


def sharded_without_a_tensor(folder: Path) -> None:
    """Weights in two files, which lack all but two tensors."""
    tensors = [*load_file(folder / "model.safetensors").items()][:2]
    (folder / "model.safetensors").unlink()
    for name, tensor in tensors:
        save_file({name: tensor}, folder / f"model-{name}.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: f"model-{name}.safetensors" for name, _ in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "folders", [ONE_PER_FAMILY, pytest.param(OF_GRIDS, marks=pytest.mark.full)], ids=["a family", "all"]
)
def test_a_stranger_loads_what_was_pushed(folders, hub, tmp_path):
    """From the Hub and then, with the Hub gone, from the cache: the outputs of the local folder."""
    questions = []
    with reached(hub, tmp_path / "home"):
        for folder in folders:
            repository = f"someone/{folder.name}"
            leaner("push", folder, repository)
            inputs = outputs_of(folder, tmp_path / f"{folder.name}.inputs")
            questions.append({"load": auto_class_of(folder), "repository": repository, "inputs": str(inputs)})
        questions.append({**questions[-1], "options": {"revision": hub.repositories[repository].head}})
    environment = hub.environment(tmp_path / "stranger")
    for answer in answers(questions, tmp_path, environment):
        assert answer.get("difference", 1) < 1e-5 and answer["module"].startswith("transformers_modules."), answer
    hub.silent_after = 0
    unknown = {"load": "AutoModel", "repository": "someone/unknown"}
    cached, missing = answers([questions[0], unknown], tmp_path, {**environment, "HF_HUB_OFFLINE": "1"})
    assert cached.get("difference", 1) < 1e-5 and "error" in missing


# leaner push


def test_a_push_replaces_what_was_there(here, tmp_path, capsys):
    """In one commit, whole; a dry run only says so."""
    folder = changed_copy(SMALLEST, tmp_path / "model")
    (folder / "training_args.bin").write_bytes(b"pickle")
    leaner("push", SMALLEST, "someone/model", "--dry-run")
    assert "(a new repository)" in capsys.readouterr().out and here.repositories == {}
    leaner("push", SMALLEST, "someone/model")
    before = here.files("someone/model")
    leaner("push", folder, "someone/model", "--dry-run")
    said = capsys.readouterr().out
    assert "'results.json' is deleted there" in said and "nothing was sent" in said and "training_args" not in said
    assert here.files("someone/model") == before
    leaner("push", folder, "someone/model")
    after = here.files("someone/model")
    assert before.keys() - after.keys() == {"results.json"} and ".gitattributes" in after
    assert after["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert len(here.repositories["someone/model"].commits) == 3  # the Hub's first, and one for each push


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_owner_takes_the_place_of_the_placeholder(folder):
    """In the card alone; everything else is sent as it is, and all of it."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sent = push.checked_contents(folder, "some-one/another-name")
    card = sent.pop("README.md").decode()
    assert "OWNER" not in card
    assert re.search(rf"some-one/{re.escape(folder.name)}(?![\w-])", card) is None
    assert '"some-one/another-name"' in card
    base = ModelCard(card).data.base_model
    assert base is None or base.startswith(("some-one/lean", "sentence-transformers/"))
    assert sent == {name: folder / name for name in sent}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_push_all(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (SMALLEST, ONE_PER_FAMILY[1]):
        shutil.copytree(folder, Path("model_cards") / folder.name)
    leaner("push", "--all", "someone")
    assert sorted(here.repositories) == [f"someone/{path.name}" for path in sorted(Path("model_cards").iterdir())]


def without(name: str):
    return lambda folder: (folder / name).unlink()


def edited(name: str, before: str, after: str):
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(before, after, 1))


def test_what_is_not_whole_is_not_pushed(here, tmp_path):
    """One line that names the file; the Hub is not even asked."""
    for said, change in {
        "no config.json": without("config.json"),
        "no weights": without("model.safetensors"),
        "no README.md": without("README.md"),
        "layers_leaner.py: missing": without("layers_leaner.py"),
        "do not fit config.json": edited("config.json", '"num_hidden_layers": 4', '"num_hidden_layers": 5'),
        "such as model.layers.0.self_attn": edited("config.json", '"qkv_bias": true', '"qkv_bias": false'),
        "damaged or not safetensors": lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"),
        "cannot be loaded: .* AutoModelForX": edited("config.json", "LeanViTForImageClassification", "LeanViTForX"),
        "the weights do not fit": sharded_without_a_tensor,
        "its hash differs": edited("results.json", '"weights_sha256": "', '"weights_sha256": "0'),
    }.items():
        folder = shutil.copytree(SMALLEST, tmp_path / re.sub(r"\W", "", said))
        change(folder)
        refused(f"^leaner push: {re.escape(str(folder))}.*{said}", "push", folder, "someone/model")
    for name in ("some one/model", "someone/model/deep"):
        refused("expected OWNER/NAME", "push", SMALLEST, name)
    assert "expected FOLDER OWNER/NAME" in invoked("push", SMALLEST, "model").stderr
    assert here.requests == []


@pytest.fixture
def plain(tmp_path):
    """A folder of transformers' own model, with a card."""
    config = transformers.BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "README.md").write_text("# A model\n\nWhat it does.\n")
    return tmp_path / "plain"


def test_a_folder_of_transformers_is_pushed_without_code(here, plain):
    (plain / "1_Pooling").mkdir()
    (plain / "1_Pooling/config.json").write_text("{}")
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    (plain / "modules.json").write_text(json.dumps(modules))
    (plain / "pytorch_model.bin").write_bytes(b"pickle")
    leaner("push", plain, "someone/plain")
    sent = here.files("someone/plain")
    expected = {path.relative_to(plain).as_posix() for path in plain.rglob("*") if path.is_file()}
    assert sent.keys() == expected - {"pytorch_model.bin"} | {".gitattributes"}
    assert sent["model.safetensors"] == (plain / "model.safetensors").read_bytes()


def test_the_card_of_a_cut_names_the_model_of_the_hub(here, tmp_path):
    encoder = save_sentence_encoder(tmp_path / "encoder")
    (encoder / "README.md").write_text("# An encoder\n")
    leaner("push", encoder, "someone/encoder")
    labelled(60, 1, ("text",), 2).to_parquet(tmp_path / "rows.parquet")
    rows = tmp_path / "rows.parquet"
    leaner("slim", "someone/encoder", tmp_path / "cut", "--layers", 1, "--no-training", "--data", rows)
    assert ModelCard.load(tmp_path / "cut" / "README.md").data.base_model == "someone/encoder"


def test_a_folder_of_transformers_with_code_or_damaged_weights_is_not_pushed(here, plain):
    (plain / "modeling_lean_x.py").write_text("")
    refused("modeling_lean_x.py: not a file of a published folder", "push", plain, "someone/plain")
    (plain / "modeling_lean_x.py").unlink()
    (plain / "model.safetensors").write_bytes(b"no tensors")
    refused("model.safetensors: damaged or not safetensors", "push", plain, "someone/plain")
    assert here.requests == []


def test_what_is_private_is_not_sent_where_all_can_read(here):
    leaner("push", SMALLEST, "someone/model", "--private")
    assert here.repositories["someone/model"].private
    here.repositories["someone/model"].private = False
    before = here.files("someone/model")
    refused("--private: someone/model is there already, and public", "push", SMALLEST, "someone/model", "--private")
    assert here.files("someone/model") == before


def test_what_the_hub_refuses_is_said_in_one_line(here, tmp_path, monkeypatch):
    words = ("push", SMALLEST, "someone/model")
    refused("other/model: the Hub refused .403: you have no right", "push", SMALLEST, "other/model")
    here.trouble = [Trouble("POST", "/commit/", 400, "no such parent")]
    refused("someone/model: the Hub refused .400: no such parent.$", *words)
    here.trouble = []
    assert here.files("someone/model").keys() == {".gitattributes"}
    leaner(*words)
    monkeypatch.setattr(push, "deleted", lambda *_: here.repositories["someone/model"].commit({}) or [])
    refused("it has changed meanwhile; nothing was sent", "push", changed_copy(SMALLEST, tmp_path / "x"), words[2])
    here.silent_after = 0
    refused("someone/model: the Hub does not answer", *words)
    here.silent_after = None
    with reached(here, tmp_path / "home", token=None):
        refused("someone/model: .*no token found.*hf auth login", *words)


def test_a_push_that_ends_anywhere_leaves_the_old_state_or_the_new(here, tmp_path):
    """The Hub falls silent after every request in turn: nothing between the two versions is ever there."""
    repository = "someone/model"
    new = changed_copy(SMALLEST, tmp_path / "model")
    leaner("push", SMALLEST, repository)
    old = here.files(repository)
    for requests in range(60):
        here.silent_after = len(here.requests) + requests
        try:
            leaner("push", new, repository)
        except SystemExit as end:
            assert here.files(repository) == old, requests
            assert str(end.code).startswith("leaner push: someone/model: "), end.code
            continue
        break
    assert requests >= 4, "the push made hardly a request: this test proves nothing"
    assert here.files(repository)["model.safetensors"] == (new / "model.safetensors").read_bytes()


# What never leaves


LOCAL = {
    "data_files: [/home/me/rows.parquet]": "data_files: [rows.parquet]",
    "- /home/my name/rows of mine.parquet": "- rows of mine.parquet",
    '"name_or_path": "/home/me/models/a model"': '"name_or_path": "a model"',
    "leaner train --data_files train=../mine/x.csv --output_dir ~/runs/y": (
        "leaner train --data_files train=x.csv --output_dir y"
    ),
    "leaner train --shape=/home/me/cut '--teacher=/home/my name/a model' --texts 'of a, of b'": (
        "leaner train --shape=cut '--teacher=a model' --texts 'of a, of b'"
    ),
    "'--data_files=train=/home/my name/y' 'sts.12=/home/my name/z'": "'--data_files=train=y' 'sts.12=z'",
    r'{"shape": "../", "texts": "from \"/home/me/x\" and more"}': r'{"shape": "..", "texts": "from \"x\" and more"}',
    'data_files: ["file:///home/me/d.parquet", "train:/home/me/secret"]': 'data_files: ["d.parquet", "train:secret"]',
    "<td>/home/me/x</td> >/home/me/log": "<td>x</td> >log",
    r"C:\Users\me\rows.csv, D:/Users/me/rows.csv": "rows.csv, rows.csv",
}
NOT_LOCAL = (
    "https://host.de:80/a/b [x](docs/a/b.md)",
    '<a><img src="b.svg"/></a> <a href="c"> </b>/<i>',
    "`seed`/rate and size/batch are in `recipe.yaml`",
    "8 / 4 / 2, ~5/6 of, and/or/not, './a' or 'x/y', OWNER/x",
    r"a \\ b \\[2pt]/2 {'\\n'}Q:\\nfoo\\nA:\\n",
)


def test_paths_of_this_machine_are_left_out():
    for text, expected in LOCAL.items():
        assert hub_files.without_local_paths(text) == expected
    for text in NOT_LOCAL:
        assert hub_files.without_local_paths(text) == text


def check_repository_of_run(hub: LocalHub, name: str, private: Path) -> dict[str, bytes]:
    """The files of a repository that a training pushed: of all its commits none has what stays here, nor a path."""
    for tree in hub.repositories[name].commits.values():
        assert not any(STATE.search(path) for path in tree), sorted(tree)
        for path, content in tree.items():
            assert str(private).encode() not in content and TOKEN.encode() not in content, path
    return hub.files(name)


def test_a_run_pushes_itself(here, tmp_path, monkeypatch):
    """While it trains what loads; at its end the whole folder; never its state, nor where its data lie."""
    monkeypatch.chdir(tmp_path)
    files = []
    for split in ("train", "validation"):
        path = tmp_path / f"{split} of mine.parquet"
        labelled(24, 0, ("sentence",), 2).to_parquet(path)
        files.append(f"{split}={path}")
    words = ["--task", "sequence-classification", "--shape", write_shape("bert", tmp_path), "--tokenizer", "wordpiece"]
    words += ["--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "no"]
    words += ["--push_to_hub", "true", "--hub_model_id", "someone/run", "--output_dir", str(tmp_path / "run")]
    words += ["--preprocessing_workers", "1", "--use_cpu", "true", "--data_files", *files]
    train.main(words)
    sent = check_repository_of_run(here, "someone/run", tmp_path)
    assert len(here.repositories["someone/run"].commits) == 2
    folder = tmp_path / "run"
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "results.json"} <= sent.keys()
    assert {path.name for path in folder.glob("*.py")} <= sent.keys()
    for name in ("config.json", "model.safetensors"):
        assert sent[name] == (folder / name).read_bytes()
    config = json.loads(sent["config.json"])
    assert "AutoModelForSequenceClassification" in config["auto_map"] and "AutoModel" in config["auto_map"]
    assert ModelCard(sent["README.md"].decode()).data.pipeline_tag == "text-classification"
    assert b"OWNER" not in sent["README.md"] and b'\nrepository = "someone/run"  #' in sent["README.md"]
    assert 'repository = "run"  #' in (folder / "README.md").read_text()
    files = yaml.safe_load(sent["recipe.yaml"])["data_files"]
    assert files == ["train=train of mine.parquet", "validation=validation of mine.parquet"]
    assert not {"push_to_hub", "hub_model_id"} & set((folder / "recipe.yaml").read_text().replace(":", " ").split())
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "optimizer.pt").write_bytes(b"state")
    leaner("push", folder, "someone/run")
    check_repository_of_run(here, "someone/run", tmp_path)


DIGITS = "digits --shape vit/nano --max_steps 1 --max_train_rows 32 --max_eval_rows 8".split()
DIGITS += "--per_device_train_batch_size 8 --use_cpu true".split()


def test_a_run_that_cannot_be_pushed_says_so_before_it_trains(hub, tmp_path, capsys):
    words = [*DIGITS, "--output_dir", str(tmp_path / "run"), "--push_to_hub", "true", "--hub_model_id", "someone/run"]
    hub.silent_after = 0
    for token, said in ((None, "no token found"), (TOKEN, "someone/run: the Hub does not answer")):
        with reached(hub, tmp_path / "home", token=token), pytest.raises(SystemExit):
            train.main(words)
        assert said in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / "run").exists()


def test_a_run_whose_last_push_fails_is_whole(here, tmp_path, capsys):
    words = [*DIGITS, "--output_dir", str(tmp_path / "run"), "--push_to_hub", "true", "--hub_model_id", "someone/run"]
    here.trouble = [Trouble("POST", "/commit/", 503, "closed")]
    with pytest.raises(SystemExit):
        train.main(words)
    last = capsys.readouterr().err.splitlines()[-1]
    command = re.search(r"is whole, and leaner (push .*) sends it: ", last)
    assert command and "closed" in last, last
    here.trouble = []
    with redirect_stdout(io.StringIO()):
        leaner(*command[1].split())
    assert "results.json" in here.files("someone/run")


@pytest.mark.parametrize(
    "file, line",
    [
        ("README.md", "Made with the token hf_abcdefghijklmnop."),
        ("recipe.yaml", "hub_token: a-secret"),
        ("metrics.jsonl", '{"path": "/home/somebody/data"}'),
    ],
)
def test_secrets_and_home_folders_are_not_sent(here, tmp_path, file, line):
    folder = shutil.copytree(SMALLEST, tmp_path / "copy")
    with (folder / file).open("a") as text:
        text.write(f"\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(file)):
        push.push(folder, "owner/name", dry_run=True)


def test_a_silent_hub_is_not_one_without_the_file(here):
    leaner("push", SMALLEST, "someone/model")
    here.silent_after = 0
    with pytest.raises(ValueError, match="someone/model: the Hub does not answer"):
        hub_files.local_folder("someone/model")
    here.silent_after = None
    folder = hub_files.local_folder("someone/model")
    assert (folder / "recipe.yaml").read_bytes() == here.files("someone/model")["recipe.yaml"]
