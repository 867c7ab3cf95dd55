"""What a shape costs, by arithmetic: FLOPs of a training step, the memory of its tensors, and how numbers are written.

The memory is that of float32 on a CPU with the family's own attention: weights, gradients, AdamW's two states and
activations of the pretraining head; gradients dropped before the step (`zero_grad`), no checkpointing. The allocator's
slack, the libraries and the process itself are not counted.
"""

import re
from dataclasses import dataclass

from ..configuration_leaner import LeanConfig


SIZE = 4  # bytes of a value
MASKED_SHARE = 0.15  # of the tokens, whose vocabulary scores LeanBERT computes (Devlin et al. 2018, section 3.1)
MASK_BYTES = 1  # that dropout keeps for a value
BATCH = 8  # sequences or images of a training step

NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]?)\s*")
FACTORS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MOST = 1e18  # beyond which the arithmetic overflows


def parse_count(flag: str, text: str) -> float:
    """`30M` → 3e7. Raises ValueError, naming the flag, for another unit, no number, nothing above 0, or above 1e18."""
    match = NUMBER.fullmatch(text)
    count = float(match[1]) * FACTORS.get(match[2].upper(), 0) if match else 0
    if not 0 < count <= MOST:
        raise ValueError(f"{flag} {text}: expected a number above 0, up to {MOST:g}, as 30M, 1.5G or 2e9")
    return count


def human(value: float) -> str:
    """Three digits and K, M, G or T."""
    units = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
    factor, letter = next((unit for unit in units if value >= unit[0]), (1, ""))
    digits = ".3g" if value < 999.5 * factor else ".0f"  # where three digits would round to 1e+03
    return f"{value / factor:{digits}}{letter}"


def training_flops(
    config: LeanConfig, length: int | None = None, head: str | None = None, masked_share: float = MASKED_SHARE
) -> int:
    """FLOPs of a training step on one sequence or image; a masked language model scores its masked tokens alone.

    `head` is one of `task_heads`, by default that of pretraining; without `length`, that of the longest sequence.
    """
    is_masked = (head or config.task_heads[0]) == "ForMaskedLM"
    masked = round(masked_share * (length or config.default_length))
    return config.count_flops(length, head, masked if is_masked else None).training_step


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of tensors in one training step; `activations` are what autograd keeps when the forward pass ends.

    `peak` is the most that is alive at once. Activations fall while gradients rise, so it is less than the sum.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


def training_memory(config: LeanConfig, length: int | None = None, batch_size: int = BATCH) -> TrainingMemory:
    """Bytes of the tensors of one training step by AdamW, and their peak; `length` in tokens, by default the longest.

    Weights and the two states are there throughout. On top comes the largest of four moments: the loss (all
    activations; its log-softmax and two gradients of that size), the last block's backward pass (a gradient as wide as
    the MLP), the first block's (all gradients), and the update (all gradients; two temporaries as large as the largest
    weight).
    """
    length = length or config.default_length
    tokens = batch_size * length
    weights = config.count_parameters().total * SIZE

    # The blocks: norms and their statistics, q, k, v, the attention's output and log-sum-exp, the MLP around its
    # activation, and a byte for each value or pair of tokens that may be dropped.
    heads, layers = sum(config.heads_per_layer), config.num_hidden_layers
    values = 2 * config.head_dim * (heads + sum(config.key_value_heads_per_layer)) + heads
    values += layers * (4 * config.hidden_size + 4 + 2 * config.intermediate_size)
    masked = 2 * layers * config.hidden_size if config.hidden_dropout_prob else 0
    masked += heads * length if config.attention_probs_dropout_prob else 0
    blocks = tokens * (values * SIZE + MASK_BYTES * masked)

    # Outside the blocks, without the loss: embeddings, last norm, input of the head, which scores so many rows.
    head, pixels = config.task_heads[0], 0
    if head == "ForImageClassification":
        rows, vectors = batch_size, tokens
        pixels = config.num_channels * config.image_shape[0] * config.image_shape[1] * batch_size
    elif head == "ForMaskedLM":  # the embeddings' norm, and at the scored rows linear, activation, norm, linear
        rows = round(MASKED_SHARE * tokens)
        vectors = tokens + 4 * rows
    else:
        rows, vectors = tokens, 2 * tokens
    dropped = tokens * config.hidden_size * MASK_BYTES if config.hidden_dropout_prob else 0
    kept = blocks + (vectors * config.hidden_size + pixels) * SIZE + dropped

    chunk = getattr(config, "loss_chunk_size", None)
    classes = getattr(config, "vocab_size", config.num_labels)
    scores = classes * (rows if chunk is None else min(rows, chunk))  # held at one time
    in_flight = tokens * config.intermediate_size * SIZE
    inner = max(config.intermediate_size, config.head_dim * max(config.heads_per_layer), config.hidden_size)
    temporaries = 2 * SIZE * max(getattr(config, "vocab_size", 0), inner) * config.hidden_size
    moments = (
        kept + 3 * SIZE * scores,
        kept + in_flight,
        weights + blocks // config.num_hidden_layers + in_flight,
        weights + temporaries,
    )
    return TrainingMemory(weights, weights, 2 * weights, kept + SIZE * scores, peak=3 * weights + max(moments))
