"""Conversion of transformers' ViT, BERT and GPT-2 to LeanViT, LeanBERT and LeanGPT, and back, tensor by tensor.

Both directions use one table from transformers' names to ours; going back, the same table says which of our tensors
a tensor of transformers is made of. Nothing is approximated: a shape or option that the other side lacks is refused.
One tensor is dropped: the second output bias of an untied BertForMaskedLM, which BERT itself never reads.
"""

import copy
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_lean_bert, modeling_lean_gpt, modeling_lean_vit
from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig
from .files import naming, read_object, update_config, whole_folder
from .hub import copy_into, load_processors, local_folder, sentence_transformers_files
from .layers_leaner import WEIGHTS, find_folder, find_integers, find_weights
from .names import require_model_type


MOST_NAMES = 8  # of tensors in a message


class ConversionError(ValueError):
    """The checkpoint has no exact relative, or its tensors are not those of its architecture."""


@dataclass(frozen=True)
class Relative:
    """A family and its relative in transformers."""

    model_type: str  # of transformers' configuration
    config_class: type[LeanConfig]
    modeling: object
    classes: dict[str, str]  # class of transformers → ours
    fields: dict[str, str]  # configuration field of transformers → ours
    only: dict[str, object]  # options of transformers of which we support one value
    names: list[tuple[str, str]]  # regular expressions, tensor name of transformers → ours, applied in order
    transposed: str | None = None  # our names of the matrices that transformers stores transposed (Conv1D)
    fused: str | None = None  # part of the name under which transformers stores q, k and v as one tensor
    unread: str | None = None  # a tensor that transformers' model never reads, and that has the name of another here


# Fields with the same name in both configurations; `SHARED` are those of every configuration.
SHARED = ("id2label", "label2id", "problem_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id")
BLOCK = ("hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")
ENCODER = (*BLOCK, "intermediate_size", "hidden_act", "layer_norm_eps")
ENCODER += ("hidden_dropout_prob", "attention_probs_dropout_prob")
TEXT = ("vocab_size", "max_position_embeddings", "tie_word_embeddings")
IMAGE = ("image_size", "patch_size", "num_channels", "qkv_bias", "pooler_output_size", "pooler_act")

VIT = Relative(
    model_type="vit",
    config_class=LeanViTConfig,
    modeling=modeling_lean_vit,
    classes={"ViTModel": "LeanViTModel", "ViTForImageClassification": "LeanViTForImageClassification"},
    fields={name: name for name in (*ENCODER, *IMAGE)},
    only={"is_causal": False},
    names=[
        (r"^vit\.", "model."),
        (r"embeddings\.patch_embeddings\.projection", "embeddings.projection"),
        (r"\.attention\.([qkvo]_proj)", r".self_attn.\1"),
        (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"),
        (r"(^|model\.)layernorm\.", r"\1norm."),
    ],
)
BERT = Relative(
    model_type="bert",
    config_class=LeanBERTConfig,
    modeling=modeling_lean_bert,
    classes={f"Bert{head}": f"LeanBERT{head}" for head in ("Model", *LeanBERTConfig.task_heads)},
    fields={name: name for name in (*ENCODER, *TEXT, "type_vocab_size", "classifier_dropout")},
    only={
        "is_causal": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    names=[
        (r"^bert\.", "model."),
        (r"embeddings\.word_embeddings", "embed_tokens"),
        (r"embeddings\.position_embeddings", "embeddings.embed_positions"),
        (r"embeddings\.token_type_embeddings", "embeddings.embed_token_types"),
        (r"embeddings\.LayerNorm", "embeddings.norm"),
        (r"encoder\.layer\.", "layers."),
        (r"attention\.self\.query", "self_attn.q_proj"),
        (r"attention\.self\.key", "self_attn.k_proj"),
        (r"attention\.self\.value", "self_attn.v_proj"),
        (r"attention\.output\.dense", "self_attn.o_proj"),
        (r"attention\.output\.LayerNorm", "norm1"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"(layers\.\d+)\.output\.dense", r"\1.mlp.fc2"),
        (r"(layers\.\d+)\.output\.LayerNorm", r"\1.norm2"),
        (r"cls\.predictions\.transform\.dense", "transform.dense"),
        (r"cls\.predictions\.transform\.LayerNorm", "transform.norm"),
        (r"cls\.predictions\.decoder", "lm_head"),
        (r"cls\.predictions\.bias", "lm_head.bias"),
    ],
    unread="cls.predictions.bias",  # that of the decoder is read; of a tied model they are one tensor
)
GPT = Relative(
    model_type="gpt2",
    config_class=LeanGPTConfig,
    modeling=modeling_lean_gpt,
    classes={
        "GPT2Model": "LeanGPTModel",
        "GPT2LMHeadModel": "LeanGPTForCausalLM",
        "GPT2ForSequenceClassification": "LeanGPTForSequenceClassification",
        "GPT2ForTokenClassification": "LeanGPTForTokenClassification",
        "GPT2ForQuestionAnswering": "LeanGPTForQuestionAnswering",
    },
    fields={
        **{name: name for name in (*BLOCK, *TEXT, "use_cache")},
        "n_inner": "intermediate_size",
        "activation_function": "hidden_act",
        "resid_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    only={
        "is_causal": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    names=[
        (r"^transformer\.", "model."),
        (r"(^|model\.)wte\.", r"\1embed_tokens."),
        (r"(^|model\.)wpe\.", r"\1embeddings.embed_positions."),
        (r"(^|model\.)h\.", r"\1layers."),
        (r"(^|model\.)ln_f\.", r"\1norm."),
        (r"\.ln_1\.", ".norm1."),
        (r"\.ln_2\.", ".norm2."),
        (r"attn\.c_attn", "self_attn.q_proj"),
        (r"attn\.c_proj", "self_attn.o_proj"),
        (r"mlp\.c_fc", "mlp.fc1"),
        (r"mlp\.c_proj", "mlp.fc2"),
    ],
    transposed=r"(q_proj|k_proj|v_proj|o_proj|fc1|fc2)\.weight$",
    fused="c_attn",
)
RELATIVES = (VIT, BERT, GPT)
# What files that are damaged, or that another program wrote, make transformers raise.
READING = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, SafetensorError, StrictDataclassError)
READING += (TypeError, ValueError)
LEFT_OUT = re.compile(r"(^|\.)pooler\.|^cls\.seq_relationship\.")  # which BERTs hold beside a head that reads neither
STORED_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def relative_of(model_type: object) -> Relative:
    """The family of a configuration of transformers or of ours. Raises ValueError for any other."""
    require_model_type(model_type)
    return next(each for each in RELATIVES if model_type in (each.model_type, each.config_class.model_type))


def to_lean_config(config: PreTrainedConfig) -> LeanConfig:
    """Our configuration for one of transformers. Raises ConversionError for an option that we do not support."""
    relative = relative_of(config.model_type)
    only = dict(relative.only)
    if relative is GPT:
        only["embd_pdrop"] = config.resid_pdrop  # LeanGPTConfig has one for both, hidden_dropout_prob
    for name, supported in only.items():
        value = getattr(config, name, supported)
        if value != supported:
            raise ConversionError(f"{name}={value!r}: {relative.config_class.__name__} supports only {supported!r}")
    values = {ours: getattr(config, theirs) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in SHARED if hasattr(config, name)}
    if relative is GPT:
        stated = [getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout")]
        values["classifier_dropout"] = next((each for each in stated if each is not None), 0.1)  # GPT-2's own default
        if config.n_inner is None:
            values["intermediate_size"] = 4 * config.hidden_size
    if relative is VIT and getattr(config, "head_dim", None):  # no field of ViTConfig, but ViT reads it
        values["head_dim"] = config.head_dim
    return relative.config_class(**values)


def from_lean_config(config: LeanConfig) -> PreTrainedConfig:
    """transformers' configuration for one of ours, without how ours computes: `unpad_inputs`, `loss_chunk_size`.

    Raises ConversionError for a shape that it cannot have.
    """
    relative = relative_of(config.model_type)
    theirs, width = relative.model_type, config.hidden_size
    heads, groups = config.heads_per_layer[0], config.key_value_heads_per_layer[0]
    product = f"head_dim={config.head_dim} × num_attention_heads={heads}"
    for is_free, reason in (
        (config.per_layer_attributes, f"per_layer_config: {theirs} has the same heads in every layer"),
        (config.head_dim * heads != width, f"{product} is not hidden_size={width}, as {theirs} needs"),
        (groups != heads, f"num_key_value_heads={groups}: {theirs} has one per head"),
    ):
        if is_free:
            raise ConversionError(reason)

    values = {theirs: getattr(config, ours) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in SHARED if hasattr(config, name)}
    if relative is GPT:
        hidden, own = config.hidden_dropout_prob, config.classifier_dropout
        values |= {"embd_pdrop": hidden, "classifier_dropout": hidden if own is None else own}
    return transformers.CONFIG_MAPPING[relative.model_type](**values)


def convert(model: PreTrainedModel) -> PreTrainedModel:
    """The exact relative of a model, with its weights: of ViT, BERT and GPT-2 ours, of ours theirs.

    Raises ConversionError, naming the option or class, where there is none, and ValueError for another family.
    """
    relative = relative_of(model.config.model_type)
    becomes_lean = model.config.model_type == relative.model_type
    if becomes_lean:
        classes, modeling, config = relative.classes, relative.modeling, to_lean_config(model.config)
    else:
        classes = {ours: theirs for theirs, ours in relative.classes.items()}
        modeling, config = transformers, from_lean_config(model.config)
    name = type(model).__name__
    if name not in classes:
        raise ConversionError(f"{name} is not supported, expected one of {', '.join(sorted(classes))}")
    options = {"add_pooling_layer": model.pooler is not None} if hasattr(model, "pooler") else {}
    target = getattr(modeling, classes[name])(config, **options).to(model.device, model.dtype)

    state, tensors = model.state_dict(), {}
    for theirs in state if becomes_lean else target.state_dict():
        name = theirs
        for pattern, replacement in relative.names:
            name = re.sub(pattern, replacement, name)
        is_fused = relative.fused is not None and relative.fused in theirs
        names = [name.replace("q_proj", each) for each in ("q_proj", "k_proj", "v_proj")] if is_fused else [name]
        turns = relative.transposed is not None and re.search(relative.transposed, names[0]) is not None
        if not becomes_lean:
            tensor = torch.cat([state[ours] for ours in names])
            tensors[theirs] = tensor.T if turns else tensor
        elif theirs != relative.unread:  # its place is that of the tensor that is read
            tensor = state[theirs].T if turns else state[theirs]
            tensors |= zip(names, tensor.chunk(len(names)))
    target.load_state_dict(tensors, strict=True)

    target.tie_weights()
    if target.can_generate():
        target.generation_config = copy.deepcopy(model.generation_config)
    return target.train(model.training)


def load_lean(source: str | Path) -> PreTrainedModel:
    """The model of a folder or Hub id as one of ours: ours as it is, ViT, BERT and GPT-2 converted.

    Raises ValueError as `convert_checkpoint` does.
    """
    model = _load_strictly(str(source))
    return model if isinstance(model.config, LeanConfig) else convert(model)


def save_converted(model: PreTrainedModel, folder: Path, source: str) -> None:
    """Saves what was made of a checkpoint: float16 weights that config.json lets load in float32 still do."""
    model.save_pretrained(folder)
    stated = read_object(local_folder(source) / "config.json")
    if dtype := stated.get("dtype") or stated.get("torch_dtype"):
        update_config(folder, dtype=dtype)


def convert_checkpoint(source: str | Path, output: str | Path) -> PreTrainedModel:
    """Converts a folder or Hub id and writes `output`, with its tokenizer or image processor where it has one.

    Strict: a tensor that the architecture lacks or needs is an error, but for `LEFT_OUT`. `output` must not exist; it
    appears whole or not at all.

    Raises ValueError where there is no exact relative; for tensors that are missing, unexpected, of another shape, of
    integers, or not finite, each named; for a file that cannot be read; where `output` exists, or cannot be written.
    """
    source = str(source)
    converted = convert(_load_strictly(source))
    processors = load_processors(source, getattr(converted.config, "vocab_size", None))
    with whole_folder(Path(output)) as folder:
        save_converted(converted, folder, source)
        for processor in processors:
            processor.save_pretrained(folder)
        copy_into(folder, sentence_transformers_files(source))
    return converted


def _load_strictly(source: str) -> PreTrainedModel:
    """The model of a folder or Hub id, whose tensors must be exactly those of its architecture, and finite.

    Raises ValueError, naming source and tensor, where they are not.
    """
    with naming(source, READING):
        model_class = _class_in(source)
        files = find_weights(local_folder(source))
        if not files:
            raise OSError(f"no {WEIGHTS}; pickles, which can run code, and ONNX files are not read")

        # In the dtype that holds all weights exactly, whatever config.json says.
        kinds = set()
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                kinds |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        dtypes = [dtype for kind, dtype in STORED_FLOATS.items() if kind in kinds]
        load = {
            "output_loading_info": True,
            "dtype": functools.reduce(torch.promote_types, dtypes) if dtypes else "auto",
            "ignore_mismatched_sizes": True,
            "use_safetensors": True,
        }
        model, info = model_class.from_pretrained(source, **load)
        missing = info["missing_keys"]
        if missing and all(name.startswith("pooler.") for name in missing):
            model, info = model_class.from_pretrained(source, add_pooling_layer=False, **load)

        expected = model_class.__name__
        unexpected = [name for name in info["unexpected_keys"] if not LEFT_OUT.search(name)]
        sizes = [f"{name} is {list(held)}, expected {list(size)}" for name, held, size in info["mismatched_keys"]]
        broken = [name for name, tensor in model.state_dict().items() if not tensor.isfinite().all()]
        for what, names in {
            "tensors of integers, expected floating point:": find_integers(files, model),
            f"missing tensors for {expected}:": info["missing_keys"],
            f"unexpected tensors for {expected}:": unexpected,
            "tensors of another shape:": sizes,
            "NaN or infinite weights in": broken,
        }.items():
            if names:
                shown = sorted(names)[:MOST_NAMES]
                more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
                raise ConversionError(f"{what} {', '.join(shown)}{more}")

    # A configuration may tie output and input embeddings whose weights the file has apart.
    output = model.get_output_embeddings()
    if output is not None and model.config.tie_word_embeddings:
        own_bias = getattr(getattr(getattr(model, "cls", None), "predictions", None), "bias", None)
        has_own_bias = own_bias is not None and own_bias is not output.bias
        is_tied = output.weight is model.get_input_embeddings().weight and not has_own_bias
        model.config.tie_word_embeddings = is_tied
    return model


def _class_in(source: str) -> type[PreTrainedModel]:
    """The class that config.json names. Raises an error for one without relative, before anything is built."""
    folder = find_folder(source)
    config_file = folder / "config.json" if folder else Path(hf_hub_download(source, "config.json"))
    document = read_object(config_file)
    relative = relative_of(document.get("model_type"))  # before transformers would ask whether to run its code
    if document.get("quantization_config"):
        raise ConversionError("quantization_config: quantised weights cannot be converted exactly")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    modeling, expected = relative.modeling, sorted(relative.classes.values())
    if config.model_type == relative.model_type:
        modeling, expected = transformers, sorted(relative.classes)
        to_lean_config(config)
    names = config.architectures
    if not isinstance(names, list) or len(names) != 1 or names[0] not in expected:
        raise ConversionError(f"architectures in config.json is {names!r}, expected one of {', '.join(expected)}")
    return getattr(modeling, names[0])
