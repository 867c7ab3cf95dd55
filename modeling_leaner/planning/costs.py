"""What a shape costs, by arithmetic: FLOPs of a training step, the memory of its tensors, and how numbers are written.

The memory assumes one dtype for weights, gradients, AdamW's two states and activations (no autocast), the family's
pretraining head, gradients dropped before the step (`zero_grad`), and no checkpointing. The allocator's slack, the
libraries and the process itself are not counted.
"""

import re
from dataclasses import dataclass

from ..configuration_leaner import LeanConfig


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of a value
MASKED_SHARE = 0.15  # of the tokens, whose vocabulary scores LeanBERT computes (Devlin et al. 2018, section 3.1)
MASK_BYTES = 1  # that dropout keeps for a value

NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
COUNTS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
SIZES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SECONDS = {"S": 1, "MS": 1e-3, "US": 1e-6}
UNITS = {"": (COUNTS, "30M, 1.5G or 2e9"), "B": (SIZES, "8GB or 512MiB"), "s": (SECONDS, "5ms or 0.1s")}
MOST = 1e18  # beyond which the arithmetic overflows


def parse_size(flag: str, text: str, symbol: str = "") -> float:
    """A number with a unit: `symbol` is `""` for counts (K, M, G or B, T), `"B"` for bytes, `"s"` for seconds.

    Raises ValueError, naming the flag, for another unit, no number, nothing above 0, or more than 1e18.
    """
    factors, examples = UNITS[symbol]
    match = NUMBER.fullmatch(text)
    if match and match[2].upper() in factors and 0 < float(match[1]) * factors[match[2].upper()] <= MOST:
        return float(match[1]) * factors[match[2].upper()]
    raise ValueError(f"{flag} {text}: expected a number above 0, up to {MOST:g}, with a unit, as {examples}")


def human(value: float) -> str:
    """Three digits and K, M, G or T."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1, "")):
        if value >= 999.5 * factor:  # three digits would round to 1e+03
            return f"{value / factor:.0f}{letter}"
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def human_count(value: float) -> str:
    """As `human`, with B for 1e9: parameters are counted in billions."""
    return human(value).replace("G", "B")


def human_bytes(value: float) -> str:
    """As `human`, in bytes."""
    return human(value) + "B"


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
class StepSetting:
    """What a step runs on: `batch_size` sequences of `length` tokens (None: the longest the positions allow).

    `attention` is "lean", "sdpa" or "eager"; `device` is "cpu" or "gpu"; `dtype` a key of `BYTES`.
    """

    batch_size: int = 8
    length: int | None = None
    dtype: str = "float32"
    attention: str = "lean"
    device: str = "cpu"

    @property
    def value_bytes(self) -> int:
        """Bytes of a value of a weight or an activation."""
        return BYTES[self.dtype]

    def length_of(self, config: LeanConfig) -> int:
        """Tokens of a sequence."""
        return config.default_length if self.length is None else self.length

    def tokens_of(self, config: LeanConfig) -> int:
        """Tokens of the batch."""
        return self.batch_size * self.length_of(config)


DEFAULT_STEP = StepSetting()


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


def attention_matrix_bytes(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that one layer keeps for each pair of tokens and each head: 0 where a fused kernel keeps no weights.

    Eager attention keeps the softmax in float32, and, in another dtype, its copy. Dropout adds its mask of bytes and
    the product. On a CPU with dropout SDPA keeps three numbers of float32, and the family's own attention, "lean", the
    mask alone. (A processor that multiplies in bfloat16 keeps half of q, k and v, and without dropout short weights.)
    """
    drops = config.attention_probs_dropout_prob > 0
    if setting.attention == "eager":
        copy = 0 if setting.dtype == "float32" and not drops else setting.value_bytes
        return 4 + copy + MASK_BYTES * drops
    if setting.device != "cpu" or not drops:
        return 0
    return 3 * 4 if setting.attention == "sdpa" else MASK_BYTES


def block_activations(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that autograd keeps for all blocks, without gradient checkpointing.

    Norms and their statistics, q, k, v, the attention's output and log-sum-exp, the MLP around its activation, a byte
    per dropped value, and attention matrices.
    """
    size = setting.value_bytes
    tokens = setting.tokens_of(config)
    heads = sum(config.heads_per_layer)
    values = 2 * config.head_dim * (heads + sum(config.key_value_heads_per_layer)) + heads
    values += config.num_hidden_layers * (4 * config.hidden_size + 4 + 2 * config.intermediate_size)
    dropped = 2 * config.num_hidden_layers * config.hidden_size if config.hidden_dropout_prob else 0
    kept = tokens * (values * size + dropped)
    kept += attention_matrix_bytes(config, setting) * heads * tokens * setting.length_of(config)
    no_fused_kernel = setting.device == "cpu" and config.attention_probs_dropout_prob > 0
    if no_fused_kernel and setting.attention != "eager":  # q, k and v in float32
        kept += 3 * heads * config.head_dim * (4 - size) * tokens
    return kept


def scored_rows(config: LeanConfig, setting: StepSetting) -> tuple[int, int]:
    """Rows that reach the pretraining head in one step, and the classes that each is scored against."""
    head = config.task_heads[0]
    if head == "ForImageClassification":
        return setting.batch_size, config.num_labels
    tokens = setting.tokens_of(config)
    if head == "ForMaskedLM":
        return round(MASKED_SHARE * tokens), config.vocab_size
    return tokens, config.vocab_size


def outer_activations(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that autograd keeps outside the blocks, without the loss: embeddings, last norm, input of the head."""
    tokens = setting.tokens_of(config)
    rows, _ = scored_rows(config, setting)
    head = config.task_heads[0]
    vectors = 2 * tokens
    pixels = 0
    if head == "ForImageClassification":
        vectors = tokens
        pixels = config.num_channels * config.image_shape[0] * config.image_shape[1] * setting.batch_size
    elif head == "ForMaskedLM":  # the embeddings' norm, and at the scored rows linear, activation, norm, linear
        vectors = tokens + 4 * rows
    dropped = tokens * config.hidden_size * MASK_BYTES if config.hidden_dropout_prob else 0
    return (vectors * config.hidden_size + pixels) * setting.value_bytes + dropped


def training_memory(config: LeanConfig, setting: StepSetting = DEFAULT_STEP) -> TrainingMemory:
    """Bytes of the tensors of one training step by AdamW, and their peak.

    Weights and the two states are there throughout. On top comes the largest of four moments: the loss (all
    activations; its log-softmax and two gradients of that size, in float32), the last block's backward pass (a
    gradient as wide as the MLP), the first block's (all gradients), and the update (all gradients; two temporaries as
    large as the largest weight on a CPU, one as large as all weights on an accelerator).
    """
    size = setting.value_bytes
    weights = config.count_parameters().total * size
    blocks = block_activations(config, setting)
    kept = blocks + outer_activations(config, setting)
    rows, classes = scored_rows(config, setting)
    chunk = getattr(config, "loss_chunk_size", None)
    scores = classes * (rows if chunk is None else min(rows, chunk))  # held at one time
    logit_copy = 0 if setting.dtype == "float32" else size * scores  # alive while the loss is computed
    in_flight = setting.tokens_of(config) * config.intermediate_size * size
    temporaries = weights
    if setting.device == "cpu":
        inner = max(config.intermediate_size, config.head_dim * max(config.heads_per_layer), config.hidden_size)
        temporaries = 2 * size * max(getattr(config, "vocab_size", 0), inner) * config.hidden_size
    moments = {
        "loss": kept + 3 * 4 * scores + logit_copy,
        "last block": kept + in_flight,
        "first block": weights + blocks // config.num_hidden_layers + in_flight,
        "update": weights + temporaries,
    }
    return TrainingMemory(
        parameters=weights,
        gradients=weights,
        optimizer=2 * weights,
        activations=kept + 4 * scores,
        peak=3 * weights + max(moments.values()),
    )
