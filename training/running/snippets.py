"""A few lines that load a model from the Hub or a folder and print what it makes of one input."""

from pathlib import Path

from transformers import PreTrainedConfig

from ..records import RunResults


EXAMPLES = {  # dataset → an input of its kind
    "nyu-mll/glue": "a gripping and often funny film",
    "listops-short": "[MAX 2 9 [MIN 4 7 ] 0 ]",
    "roneneldan/TinyStories": "Once upon a time there was a little dog",
    "python-docs": "Return the",
}
TEXT = "The city is the capital of the country"
A_CLASS = "model.config.id2label[logits.argmax().item()]"
A_NUMBER = "logits.item()"

LOAD_TEXT = """\
from transformers import {auto}, AutoTokenizer

repository = "{repository}"  # or a folder with the files of this repository
tokenizer = AutoTokenizer.from_pretrained(repository, trust_remote_code=True)
model = {auto}.from_pretrained(repository, trust_remote_code=True)
"""
ENCODE_TEXT = """\
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoTokenizer

repository = "{repository}"  # or a folder with the files of this repository
tokenizer = AutoTokenizer.from_pretrained(repository, trust_remote_code=True)
model = AutoModel.from_pretrained(repository, trust_remote_code=True, add_pooling_layer=False)
inputs = tokenizer(["A dog runs.", "A puppy is running.", "The bank is closed."], padding=True, return_tensors="pt")
mask = inputs["attention_mask"][..., None]
sentences = (model(**inputs).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)  # mean over tokens
print(cosine_similarity(sentences[:1], sentences[1:]))"""
SNIPPETS = {  # of each task; {answer} is read from `logits`
    "embedding": ENCODE_TEXT,
    "image-classification": """\
from PIL import Image
from transformers import AutoImageProcessor, {auto}

repository = "{repository}"  # or a folder with the files of this repository
processor = AutoImageProcessor.from_pretrained(repository, trust_remote_code=True)
model = {auto}.from_pretrained(repository, trust_remote_code=True)
image = Image.new("{mode}", (32, 32), "skyblue")  # in its place Image.open("photograph.png").convert("{mode}")
logits = model(**processor(image, return_tensors="pt")).logits
print({answer})""",
    "sequence-classification": LOAD_TEXT
    + """\
logits = model(**tokenizer("{example}", return_tensors="pt")).logits
print({answer})""",
    "masked-lm": LOAD_TEXT
    + """\
inputs = tokenizer(f"{example} of {{tokenizer.mask_token}}.", return_tensors="pt")
masked = inputs["input_ids"][0] == tokenizer.mask_token_id
best = model(**inputs).logits[0, masked].topk(5).indices[0]
print(tokenizer.convert_ids_to_tokens(best.tolist()))""",
    "causal-lm": LOAD_TEXT
    + """\
inputs = tokenizer("{example}", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
print(tokenizer.decode(output[0]))""",
    "question-answering": LOAD_TEXT
    + """\
inputs = tokenizer("Where does the dog live?", "The dog lives in a red house.", return_tensors="pt")
output = model(**inputs)
start = output.start_logits[0].argmax()
end = start + output.end_logits[0, start:].argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))""",
}


def auto_class(architecture: str) -> str:
    """`LeanBERTForMaskedLM` → `AutoModelForMaskedLM`, `LeanBERTModel` → `AutoModel`."""
    _, separator, head = architecture.partition("For")
    return f"AutoModel{separator}{head}"


def named_place(folder: Path) -> str:
    """A folder as a card names it: by its path from here; where it lies elsewhere on this disk, by its name alone."""
    if not folder.is_absolute():
        return folder.as_posix()
    if folder.is_relative_to(Path.cwd()):
        return folder.relative_to(Path.cwd()).as_posix()
    return folder.name


def snippet(results: RunResults, config: PreTrainedConfig, where: str) -> str:
    """Python that ends by printing a prediction; `where` is the Hub id or folder of the model."""
    example = EXAMPLES.get(results.dataset, TEXT)
    return task_snippet(results.task, results.architecture, config, where, example)


def task_snippet(task: str, architecture: str, config: PreTrainedConfig, where: str, example: str = TEXT) -> str:
    """As `snippet`, of a model class with the head of a task; `example` is the input where that is a text."""
    answer = A_CLASS
    if config.problem_type == "regression":
        answer = A_NUMBER
    mode = "RGB"
    if getattr(config, "num_channels", None) == 1:
        mode = "L"
    auto = auto_class(architecture)
    return SNIPPETS[task].format(auto=auto, repository=where, example=example, mode=mode, answer=answer)
