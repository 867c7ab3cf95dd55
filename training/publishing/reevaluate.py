"""A stranger's evaluation: a folder's model by its Auto class and its own code, where the package cannot be imported.

Run as a file of its own, `python reevaluate.py FOLDER HEAD INPUTS OUTPUT`: INPUTS is a safetensors file of batches,
`0.input_ids`, `0.labels`, `1.input_ids` ...; OUTPUT gets what the metrics need of each row: logits for a
classification; loss in nats, tokens and hits for a language model, and for a causal one loss and number of the tokens
that complete a bigram seen before in their row. It imports nothing of this package, on purpose.
"""

import sys


def reduced(head, logits, labels):
    """(B, ...): what is kept of one batch; -100 among the labels (B, T) is ignored."""
    import torch

    if head == "ForCausalLM":
        logits = logits[:, :-1]
        before, labels = labels[:, :-1], labels[:, 1:]
    elif head != "ForMaskedLM":
        return logits
    counted = labels != -100
    log_probabilities = logits.float().log_softmax(-1)
    of_labels = log_probabilities.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    hits = (logits.argmax(-1) == labels) & counted
    kept = [-(of_labels * counted).sum(1), counted.sum(1), hits.sum(1)]
    if head == "ForCausalLM":
        same = (before[:, :, None] == before[:, None]) & (labels[:, :, None] == labels[:, None])
        repeated = same.tril(-1).any(2) & counted
        kept += [-(of_labels * repeated).sum(1), repeated.sum(1)]
    return torch.stack(kept, dim=1)


def main(folder: str, head: str, inputs: str, output: str) -> None:
    """Loads the folder's model and writes what `reduced` keeps of each batch."""
    sys.modules["modeling_leaner"] = None  # so that it cannot be imported
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = getattr(transformers, f"AutoModel{head}").from_pretrained(folder, trust_remote_code=True).eval()
    batches = {}
    for name, tensor in load_file(inputs).items():
        index, field = name.split(".")
        batches.setdefault(int(index), {})[field] = tensor
    kept = {}
    with torch.inference_mode():
        for index, batch in batches.items():
            labels = batch.pop("labels", None)
            kept[str(index)] = reduced(head, model(**batch).logits, labels).float().contiguous()
    save_file(kept, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
