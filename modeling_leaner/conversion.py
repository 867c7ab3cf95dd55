"""Conversion of transformers' ViT, BERT and GPT-2 to LeanViT, LeanBERT and LeanGPT, and back, tensor by tensor.

Both directions use one table from transformers' names to ours; going back, the same table says which of our tensors
a tensor of transformers is made of. Nothing is approximated: a shape or option that the other side lacks is refused.
One tensor is dropped: the second output bias of an untied BertForMaskedLM, which BERT itself never reads.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import torch
import transformers
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_lean_bert, modeling_lean_gpt, modeling_lean_vit
from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig
from .files import read_json, whole_folder
from .hub import (
    check_vocabulary,
    copy_into,
    files_of,
    load_processors,
    local_file,
    refuse_pickles,
    sentence_transformers_files,
)
from .layers_leaner import WEIGHTS, find_folder, find_integers, find_weights, in_one_line


class ConversionError(ValueError):
    """The checkpoint has no exact relative, or its tensors are not those of its architecture."""


@dataclass(frozen=True)
class Relative:
    """A family and its relative in transformers, whose configuration has this `model_type`.

    `classes`: class of transformers → ours. `fields`: configuration field of transformers → ours. `only`: options of
    transformers of which we support one value. `names`: regular expressions, tensor name of transformers → ours,
    applied in order. `transposed`: our names of the matrices that transformers stores transposed (Conv1D). `fused`:
    part of the name under which transformers stores q, k and v as one tensor. `unread`: a tensor of transformers that
    its model never reads as such, and that has the name of another here. `shared`: fields with the same name.
    """

    model_type: str
    config_class: type[LeanConfig]
    modeling: object
    classes: dict[str, str]
    fields: dict[str, str]
    only: dict[str, object]
    names: list[tuple[str, str]]
    transposed: str | None = None
    fused: str | None = None
    unread: str | None = None
    shared: tuple[str, ...] = field(
        default=("id2label", "label2id", "problem_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id")
    )


def same(*names: str) -> dict[str, str]:
    """Fields that have the same name in both configurations."""
    return {name: name for name in names}


BLOCK = same("hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")
ENCODER = BLOCK | same(
    "intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"
)
TEXT = same("vocab_size", "max_position_embeddings")

VIT = Relative(
    model_type="vit",
    config_class=LeanViTConfig,
    modeling=modeling_lean_vit,
    classes={"ViTModel": "LeanViTModel", "ViTForImageClassification": "LeanViTForImageClassification"},
    fields={
        **ENCODER,
        **same("image_size", "patch_size", "num_channels", "qkv_bias", "pooler_output_size", "pooler_act"),
    },
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
    classes={
        f"Bert{head}": f"LeanBERT{head}"
        for head in (
            "Model",
            "ForMaskedLM",
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForQuestionAnswering",
            "ForMultipleChoice",
        )
    },
    fields={**ENCODER, **TEXT, **same("type_vocab_size", "classifier_dropout", "tie_word_embeddings")},
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
        **BLOCK,
        **TEXT,
        **same("use_cache", "tie_word_embeddings"),
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
STORED_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
MODEL_TYPES = [name for relative in RELATIVES for name in (relative.model_type, relative.config_class.model_type)]


def our_names(relative: Relative, name: str) -> list[str]:
    """Our names for a tensor of transformers: one, or three where it holds q, k and v."""
    ours = name
    for pattern, replacement in relative.names:
        ours = re.sub(pattern, replacement, ours)
    if relative.fused and relative.fused in name:
        return [ours.replace("q_proj", projection) for projection in ("q_proj", "k_proj", "v_proj")]
    return [ours]


def to_lean_config(config: PreTrainedConfig) -> LeanConfig:
    """Our configuration for one of transformers. Raises ConversionError for an option that we do not support."""
    relative = _relative(config.model_type, [relative.model_type for relative in RELATIVES])
    for name, supported in relative.only.items():
        value = getattr(config, name, supported)
        if value != supported:
            raise ConversionError(f"{name}={value!r}: {relative.config_class.__name__} supports only {supported!r}")
    values = {ours: getattr(config, theirs) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in relative.shared if hasattr(config, name)}
    if relative is GPT:
        values |= _values_of_gpt2(config)
    if relative is VIT and getattr(config, "head_dim", None):  # no field of ViTConfig, but ViT reads it
        values["head_dim"] = config.head_dim
    return relative.config_class(**values)


def _values_of_gpt2(config: PreTrainedConfig) -> dict[str, object]:
    """The fields of LeanGPTConfig that GPT-2 has under no name of its own, or as a default that it leaves out."""
    if config.embd_pdrop != config.resid_pdrop:
        raise ConversionError(
            f"embd_pdrop={config.embd_pdrop} differs from resid_pdrop={config.resid_pdrop}: "
            "LeanGPTConfig has one hidden_dropout_prob"
        )
    values: dict[str, object] = {"classifier_dropout": 0.1}  # as GPT-2's own classifier
    for name in ("hidden_dropout", "classifier_dropout"):
        if getattr(config, name, None) is not None:
            values["classifier_dropout"] = getattr(config, name)
    if config.n_inner is None:
        values["intermediate_size"] = 4 * config.hidden_size
    return values


def from_lean_config(config: LeanConfig) -> PreTrainedConfig:
    """transformers' configuration for one of ours, without how ours computes: `unpad_inputs`, `loss_chunk_size`.

    Raises ConversionError for a shape that it cannot have.
    """
    relative = _relative(config.model_type, [relative.config_class.model_type for relative in RELATIVES])
    if config.per_layer_attributes:
        raise ConversionError(f"per_layer_config: {relative.model_type} has the same heads in every layer")
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise ConversionError(
            f"head_dim={config.head_dim} × num_attention_heads={config.num_attention_heads} is not "
            f"hidden_size={config.hidden_size}, as {relative.model_type} needs"
        )
    if getattr(config, "num_key_value_heads", config.num_attention_heads) != config.num_attention_heads:
        given = config.num_key_value_heads
        raise ConversionError(f"num_key_value_heads={given}: {relative.model_type} has one per head")
    values = {theirs: getattr(config, ours) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in relative.shared if hasattr(config, name)}
    if relative is GPT:
        values["embd_pdrop"] = config.hidden_dropout_prob
        values["classifier_dropout"] = config.classifier_dropout
        if config.classifier_dropout is None:
            values["classifier_dropout"] = config.hidden_dropout_prob
    return transformers.CONFIG_MAPPING[relative.model_type](**values)


def _relative(model_type: str, expected: list[str]) -> Relative:
    """The family of a `model_type`, which must be among the expected ones."""
    for relative in RELATIVES:
        if model_type in expected and model_type in (relative.model_type, relative.config_class.model_type):
            return relative
    raise ConversionError(f"model_type {model_type!r} has no relative here, expected one of {', '.join(expected)}")


def convert(model: PreTrainedModel) -> PreTrainedModel:
    """The exact relative of a model, with its weights: of ViT, BERT and GPT-2 ours, of ours theirs.

    Raises:
        ConversionError: there is none, or a weight is NaN or infinite; names the class, option or tensor.
    """
    relative = _relative(model.config.model_type, MODEL_TYPES)
    to_lean = model.config.model_type == relative.model_type
    if to_lean:
        classes = relative.classes
        modeling = relative.modeling
        config = to_lean_config(model.config)
    else:
        classes = {ours: theirs for theirs, ours in relative.classes.items()}
        modeling = transformers
        config = from_lean_config(model.config)
    name = type(model).__name__
    if name not in classes:
        raise ConversionError(f"{name} has no relative here, expected one of {', '.join(sorted(classes))}")
    options = {}
    if hasattr(model, "pooler"):
        options["add_pooling_layer"] = model.pooler is not None
    state = model.state_dict()
    _require_finite(state)
    target_class = getattr(modeling, classes[name])
    target = target_class(config, **options).to(model.device, model.dtype)
    tensors = _to_lean(relative, state) if to_lean else _from_lean(relative, state, target.state_dict())
    _load_exactly(target, tensors)
    if target.can_generate():
        target.generation_config = copy.deepcopy(model.generation_config)
    return target.train(model.training)


def _require_finite(tensors: dict[str, torch.Tensor]) -> None:
    """Raises ConversionError for tensors that hold NaN or infinity."""
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise ConversionError(f"NaN or infinite weights in {in_one_line(broken)}")


def _to_lean(relative: Relative, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our tensors by our names; of the two output biases of an untied BERT, the one that BERT reads."""
    tensors = {}
    for theirs, tensor in state.items():
        if theirs == relative.unread:
            continue
        names = our_names(relative, theirs)
        if relative.transposed and re.search(relative.transposed, names[0]):
            tensor = tensor.T
        for ours, part in zip(names, tensor.chunk(len(names), dim=0)):
            tensors[ours] = part.clone(memory_format=torch.contiguous_format)
    return tensors


def _from_lean(relative: Relative, state: dict[str, torch.Tensor], target: Iterable[str]) -> dict[str, torch.Tensor]:
    """transformers' tensors by the names of its model, `target`."""
    tensors = {}
    for theirs in target:
        names = our_names(relative, theirs)
        missing = [name for name in names if name not in state]
        if missing:
            raise ConversionError(f"tensor {missing[0]} is missing, needed for {theirs}")
        tensor = torch.cat([state[name] for name in names], dim=0)
        if relative.transposed and re.search(relative.transposed, names[0]):
            tensor = tensor.T
        tensors[theirs] = tensor.clone(memory_format=torch.contiguous_format)
    return tensors


def _load_exactly(target: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """Loads tensors that must be those of the model by name and shape. Raises ConversionError where they are not."""
    state = target.state_dict()
    for name in sorted(state.keys() | tensors.keys()):
        if name not in tensors:
            raise ConversionError(f"tensor {name} is missing, expected {list(state[name].shape)}")
        if name not in state:
            raise ConversionError(f"tensor {name} has no place in {type(target).__name__}")
        if tensors[name].shape != state[name].shape:
            raise ConversionError(f"tensor {name} is {list(tensors[name].shape)}, expected {list(state[name].shape)}")
    target.load_state_dict(tensors, strict=True)
    target.tie_weights()


def load_lean(source: str | Path, ignore: Iterable[str] = ()) -> PreTrainedModel:
    """The model of a folder or Hub id as one of ours: ours as it is, ViT, BERT and GPT-2 converted.

    Raises ConversionError and OSError as `convert_checkpoint` does.
    """
    source = str(source)
    with _named_errors(source):
        model = _load_strictly(source, list(ignore), needs_relative=False)
        if isinstance(model.config, LeanConfig):
            _require_finite(model.state_dict())
            return model
        return convert(model)


def convert_checkpoint(source: str | Path, output: str | Path, ignore: Iterable[str] = ()) -> PreTrainedModel:
    """Converts a folder or Hub id and writes `output`, with its tokenizer or image processor where it has one.

    Strict: a tensor that the architecture lacks or needs is an error, unless a pattern of `ignore` (`"cls.*"`) names
    it. `output` must not exist; it appears whole or not at all.

    Raises:
        ConversionError: no exact relative, or tensors that are missing, unexpected, of another shape, of integers, or
            not finite; each is named.
        FileExistsError: `output` exists.
        OSError: a file cannot be read or written.
    """
    source = str(source)
    output = Path(output)
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output} exists already")
    with _named_errors(source):
        converted = convert(_load_strictly(source, list(ignore)))
        processors = load_processors(source)
        check_vocabulary(source, processors, getattr(converted.config, "vocab_size", None))
    with whole_folder(output) as folder:
        for part in (converted, *processors):
            part.save_pretrained(folder)
        copy_into(folder, sentence_transformers_files(source))
    return converted


@contextlib.contextmanager
def _named_errors(source: str) -> Iterator[None]:
    """Turns errors of reading a checkpoint into one line that names the checkpoint and says what was expected."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{source}: damaged or not safetensors ({error}); expected {WEIGHTS}") from error
    except ConversionError as error:
        raise ConversionError(_with_source(source, error)) from error
    except (OSError, HFValidationError) as error:
        raise OSError(_with_source(source, error)) from error
    except RuntimeError as error:  # tensors do not fit, or more memory is needed than there is
        raise ConversionError(_with_source(source, error)) from error


@contextlib.contextmanager
def _wrong_values(place: str, failure: str) -> Iterator[None]:
    """Turns what files with wrong values raise while they are read, nearly anything, into a ConversionError.

    Only around what reads them: the same error elsewhere is a bug.
    """
    try:
        yield
    except (ConversionError, HFValidationError):
        raise
    except StrictDataclassError as error:
        raise ConversionError(f"{place}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConversionError(f"{place}: {failure}: {error}") from error


def _with_source(source: str, error: Exception) -> str:
    """The error's message, which names the source."""
    message = str(error)
    if source in message:
        return message
    return f"{source}: {message}"


def _check_config(folder: Path) -> None:
    """Raises OSError or ConversionError for a folder whose config.json is not that of one of the families."""
    config = folder / "config.json"
    if not config.is_file():
        raise OSError(f"{config}: missing")
    try:
        document = read_json(config)
    except ValueError as error:
        raise OSError(str(error)) from error
    if not isinstance(document, dict) or document.get("model_type") not in MODEL_TYPES:
        raise ConversionError(f"{config}: expected an object whose model_type is one of {', '.join(MODEL_TYPES)}")
    if "quantization_config" in document:
        raise ConversionError(f"{config}: quantization_config: quantised weights cannot be converted exactly")


def _check_weights(folder: Path) -> None:
    """Raises OSError for a folder without safetensors."""
    if not find_weights(folder):
        raise OSError(f"{folder / WEIGHTS}: missing")


def _load_strictly(source: str, ignore: list[str], needs_relative: bool = True) -> PreTrainedModel:
    """The model of a folder or Hub id, whose tensors must be exactly those of its architecture.

    With `needs_relative` a model of ours is refused, before it is built, whose shape transformers cannot hold.
    Raises OSError or ConversionError, naming the file or the tensor, where they are not.
    """
    folder = find_folder(source)
    if folder is not None:
        _check_config(folder)
    refuse_pickles(source)
    with _wrong_values(f"{source}/config.json", "cannot be read as a configuration"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if folder is not None:
            _check_weights(folder)
        model_class = _model_class(config, needs_relative)
    load = {
        "output_loading_info": True,
        "dtype": _stored_dtype(source),
        "ignore_mismatched_sizes": True,
        "use_safetensors": True,
    }
    with _wrong_values(source, "cannot be loaded"):
        model, info = model_class.from_pretrained(source, **load)
        missing = info["missing_keys"]
        if missing and all(name.startswith("pooler.") for name in missing):
            model, info = model_class.from_pretrained(source, add_pooling_layer=False, **load)
    if folder is not None:
        integers = find_integers(find_weights(folder), model)
        if integers:
            raise ConversionError(f"tensors of integers, expected floating point: {in_one_line(integers)}")
    _check_loaded(model_class.__name__, info, ignore)
    _untie_if_apart(model)
    return model


def _stored_dtype(source: str) -> torch.dtype | str:
    """The dtype that holds all weights of a folder or Hub id exactly, whatever its config.json says."""
    folder = find_folder(source)
    if folder is not None:
        files = find_weights(folder)
    else:
        files = [local_file(source, WEIGHTS)] if WEIGHTS in files_of(source) else []
    dtypes = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            dtypes |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    floats = [dtype for name, dtype in STORED_FLOATS.items() if name in dtypes]
    return functools.reduce(torch.promote_types, floats) if floats else "auto"


def _untie_if_apart(model: PreTrainedModel) -> None:
    """Corrects a configuration that ties output and input embeddings whose weights the file has apart."""
    output = model.get_output_embeddings()
    if output is None or not model.config.tie_word_embeddings:
        return
    own_bias = getattr(getattr(getattr(model, "cls", None), "predictions", None), "bias", None)
    has_own_bias = own_bias is not None and own_bias is not output.bias
    if output.weight is not model.get_input_embeddings().weight or has_own_bias:
        model.config.tie_word_embeddings = False


def _model_class(config: PreTrainedConfig, needs_relative: bool) -> type[PreTrainedModel]:
    """The class that config.json names. Raises ConversionError for one without relative, before anything is built."""
    relative = _relative(config.model_type, MODEL_TYPES)
    if config.model_type == relative.model_type:
        modeling = transformers
        expected = sorted(relative.classes)
        to_lean_config(config)
    else:
        modeling = relative.modeling
        expected = sorted(relative.classes.values())
        if needs_relative:
            from_lean_config(config)
    names = config.architectures
    if not isinstance(names, list) or len(names) != 1 or names[0] not in expected:
        raise ConversionError(f"architectures in config.json is {names!r}, expected one of {', '.join(expected)}")
    return getattr(modeling, names[0])


def _check_loaded(class_name: str, info: dict[str, Iterable], ignore: list[str]) -> None:
    """Raises ConversionError for tensors that are missing, unexpected or of another shape, by the loading info.

    Names that match a pattern of `ignore` may be missing or unexpected.
    """
    for kind in ("missing", "unexpected"):
        keys = sorted(info[f"{kind}_keys"])
        wrong = [name for name in keys if not any(fnmatch(name, pattern) for pattern in ignore)]
        if wrong:
            message = f"{kind} tensors for {class_name}: {in_one_line(wrong)}"
            if kind == "unexpected":
                message += "; --ignore PATTERN leaves tensors out"
            raise ConversionError(message)
    for name, stored, expected in sorted(info["mismatched_keys"]):
        raise ConversionError(f"tensor {name} is {list(stored)}, expected {list(expected)}")
