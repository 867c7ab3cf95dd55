"""Memory of the tensors of one training step, by arithmetic: what is held throughout, and what a backward pass needs.

Assumed: one dtype for weights, gradients, AdamW's two states and activations (no autocast), the family's pretraining
head, gradients dropped before the step (`zero_grad`), no checkpointing. The allocator's slack, the libraries and the
process itself are not counted. Measured against a CPU; what an accelerator keeps differs as each line says.
"""

from dataclasses import dataclass

from ..configuration_leaner import LeanConfig


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MASKED_SHARE = 0.15  # of the tokens, whose vocabulary scores LeanBERT computes (Devlin et al. 2018, section 3.1)


@dataclass(frozen=True)
class StepSetting:
    """What a step runs on: `batch_size` sequences of `length` tokens (None: the longest the positions allow).

    `attention` is "sdpa" or "eager"; `device` is "cpu" or "gpu"; `dtype` a key of `BYTES`.
    """

    batch_size: int = 8
    length: int | None = None
    dtype: str = "float32"
    attention: str = "sdpa"
    device: str = "cpu"

    @property
    def value_bytes(self) -> int:
        return BYTES[self.dtype]

    def length_of(self, config: LeanConfig) -> int:
        return config.default_length if self.length is None else self.length


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


def falls_back(config: LeanConfig, setting: StepSetting) -> bool:
    """Whether SDPA keeps the attention weights: on a CPU no fused kernel has dropout; it then computes in float32."""
    return setting.attention == "sdpa" and setting.device == "cpu" and config.attention_probs_dropout_prob > 0


def attention_matrix_bytes(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that one layer keeps for each pair of tokens and each head: 0 where a fused kernel keeps no weights.

    Eager attention keeps the softmax in float32, and, in another dtype, its copy. Dropout adds its mask (a byte on an
    accelerator, a value on a CPU) and the product.
    """
    size, dropout = setting.value_bytes, config.attention_probs_dropout_prob > 0
    if setting.attention == "sdpa":
        return 3 * 4 if falls_back(config, setting) else 0
    mask = size if setting.device == "cpu" else 1
    if dropout:
        return 4 + mask + size
    return 4 if size == 4 else 4 + size


def block_activations(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that autograd keeps for all blocks: `estimate_activation_bytes`, attention matrices, a CPU's wide masks.

    `estimate_activation_bytes` counts a byte per dropped value, as on an accelerator; a CPU keeps a value.
    """
    size, length = setting.value_bytes, setting.length_of(config)
    heads, tokens = sum(config.heads_per_layer), setting.batch_size * length
    linear = config.estimate_activation_bytes(setting.batch_size, length, size)
    matrices = attention_matrix_bytes(config, setting) * heads * tokens * length
    wide = 2 * config.hidden_size * (size - 1) if config.hidden_dropout_prob and setting.device == "cpu" else 0
    qkv = 3 * heads * config.head_dim * (4 - size) if falls_back(config, setting) else 0
    return linear + matrices + (wide * config.num_hidden_layers + qkv) * tokens


def scored_rows(config: LeanConfig, setting: StepSetting) -> tuple[int, int]:
    """Rows that reach the pretraining head in one step, and the classes that each is scored against."""
    tokens = setting.batch_size * setting.length_of(config)
    return {
        "ForMaskedLM": lambda: (round(MASKED_SHARE * tokens), config.vocab_size),
        "ForCausalLM": lambda: (tokens, config.vocab_size),
        "ForImageClassification": lambda: (setting.batch_size, config.num_labels),
    }[config.task_heads[0]]()


def outer_activations(config: LeanConfig, setting: StepSetting) -> int:
    """Bytes that autograd keeps outside the blocks, without the loss: embeddings, last norm, input of the head."""
    size, width = setting.value_bytes, config.hidden_size
    tokens = setting.batch_size * setting.length_of(config)
    mask = (size if setting.device == "cpu" else 1) if config.hidden_dropout_prob else 0
    rows, _ = scored_rows(config, setting)
    head = config.task_heads[0]
    if head == "ForImageClassification":
        pixels = config.num_channels * config.image_shape[0] * config.image_shape[1] * setting.batch_size
        return (pixels + tokens * width) * size + tokens * width * mask
    if head == "ForMaskedLM":  # the embeddings' norm, and at the scored rows linear, activation, norm, linear
        return (tokens + 4 * rows) * width * size + tokens * width * mask
    return 2 * tokens * width * size + tokens * width * mask


def largest_tensor(config: LeanConfig) -> int:
    """Values of the largest weight: the token table, or a matrix of the MLP or of the attention."""
    inner = max(config.intermediate_size, config.head_dim * max(config.heads_per_layer), config.hidden_size)
    return max(getattr(config, "vocab_size", 0), inner) * config.hidden_size


def training_memory(config: LeanConfig, setting: StepSetting | None = None) -> TrainingMemory:
    """Bytes of the tensors of one training step by AdamW, and their peak.

    Weights and the two states are there throughout. On top comes the largest of four moments: the loss (all
    activations; its log-softmax and two gradients of that size, in float32), the last block's backward pass (a
    gradient as wide as the MLP), the first block's (all gradients), and the update (all gradients; two temporaries as
    large as the largest weight on a CPU, one as large as all weights on an accelerator).
    """
    setting = setting or StepSetting()
    size, parameters = setting.value_bytes, config.count_parameters().total
    weights = parameters * size
    blocks, outer = block_activations(config, setting), outer_activations(config, setting)
    rows, classes = scored_rows(config, setting)
    scores = 4 * rows * classes
    copies = 0 if size == 4 else size * rows * classes  # the logits in their own dtype, while the loss is computed
    tokens = setting.batch_size * setting.length_of(config)
    in_flight = tokens * config.intermediate_size * size
    temporaries = 2 * largest_tensor(config) * size if setting.device == "cpu" else weights
    at_loss = blocks + outer + 3 * scores + copies
    last_block, first_block = blocks + outer + in_flight, weights + blocks // config.num_hidden_layers + in_flight
    peak = 3 * weights + max(at_loss, last_block, first_block, weights + temporaries)
    return TrainingMemory(weights, weights, 2 * weights, blocks + outer + scores, peak)
