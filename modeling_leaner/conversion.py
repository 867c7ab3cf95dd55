"""Exact relatives: transformers' ViT, BERT and GPT-2 as LeanViT, LeanBERT and LeanGPT, and back, tensor by tensor.

Both directions use one table from transformers' names to ours; going back, the same table says where each tensor of
the target is to be found. Nothing is approximated: a shape or option that the other side does not have is refused.
One tensor has no place here: the second output bias of an untied BertForMaskedLM, which BERT itself never reads.
"""

import contextlib
import copy
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import torch
import transformers
from huggingface_hub import list_repo_files
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from . import modeling_lean_bert, modeling_lean_gpt, modeling_lean_vit
from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .configuration_leaner import LeanConfig


class ConversionError(ValueError):
    """A checkpoint that has no exact relative, or that lacks or exceeds the tensors of its architecture."""


@dataclass(frozen=True)
class Relative:
    """One family and its relative in transformers.

    `classes`: architecture of transformers → ours. `fields`: configuration field of transformers → ours.
    `only`: options of transformers we hold at one value only. `names`: regular expressions, name of transformers →
    ours, applied in order. `transposed`: our names whose matrix transformers stores transposed (Conv1D).
    `fused`: name of transformers that holds q, k and v in one tensor.
    """

    source: str
    config_class: type[LeanConfig]
    modeling: object
    classes: dict[str, str]
    fields: dict[str, str]
    only: dict[str, object]
    names: list[tuple[str, str]]
    transposed: str | None = None
    fused: str | None = None
    shared: tuple[str, ...] = field(
        default=("id2label", "label2id", "problem_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id")
    )


BLOCK = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "initializer_range": "initializer_range",
}
ENCODER = BLOCK | {
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
}
TEXT = {"vocab_size": "vocab_size", "max_position_embeddings": "max_position_embeddings"}

VIT = Relative(
    source="vit",
    config_class=LeanViTConfig,
    modeling=modeling_lean_vit,
    classes={"ViTModel": "LeanViTModel", "ViTForImageClassification": "LeanViTForImageClassification"},
    fields=ENCODER
    | {name: name for name in ("image_size", "patch_size", "num_channels", "qkv_bias")}
    | {name: name for name in ("pooler_output_size", "pooler_act")},
    only={},
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
    source="bert",
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
    fields=ENCODER | TEXT | {name: name for name in ("type_vocab_size", "classifier_dropout", "tie_word_embeddings")},
    only={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
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
)
GPT = Relative(
    source="gpt2",
    config_class=LeanGPTConfig,
    modeling=modeling_lean_gpt,
    classes={
        "GPT2Model": "LeanGPTModel",
        "GPT2LMHeadModel": "LeanGPTForCausalLM",
        "GPT2ForSequenceClassification": "LeanGPTForSequenceClassification",
        "GPT2ForTokenClassification": "LeanGPTForTokenClassification",
        "GPT2ForQuestionAnswering": "LeanGPTForQuestionAnswering",
    },
    fields=BLOCK
    | TEXT
    | {
        "n_inner": "intermediate_size",
        "activation_function": "hidden_act",
        "resid_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps",
        "use_cache": "use_cache",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    only={
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
PREPROCESSORS = (
    (AutoImageProcessor, {"preprocessor_config.json"}),
    (transformers.AutoTokenizer, {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"}),
)


def our_names(relative: Relative, name: str) -> list[str]:
    """Our names of one tensor of transformers: one, or three where q, k and v are fused."""
    ours = name
    for pattern, replacement in relative.names:
        ours = re.sub(pattern, replacement, ours)
    if relative.fused and relative.fused in name:
        return [ours.replace("q_proj", projection) for projection in ("q_proj", "k_proj", "v_proj")]
    return [ours]


def to_lean_config(config: PreTrainedConfig) -> LeanConfig:
    """Our configuration for one of transformers; ConversionError names an option that we do not hold."""
    relative = _relative(config.model_type, source=True)
    for name, value in relative.only.items():
        found = getattr(config, name, value)
        if found != value:
            raise ConversionError(f"{name}={found!r}: {relative.config_class.__name__} holds only {value!r}")
    values = {ours: getattr(config, theirs) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in relative.shared if hasattr(config, name)}
    if relative is GPT:
        if config.embd_pdrop != config.resid_pdrop:
            raise ConversionError(
                f"embd_pdrop={config.embd_pdrop} differs from resid_pdrop={config.resid_pdrop}: "
                "LeanGPTConfig has one hidden_dropout_prob"
            )
        values["intermediate_size"] = config.n_inner or 4 * config.hidden_size
        values["classifier_dropout"] = getattr(config, "classifier_dropout", None)
        if values["classifier_dropout"] is None:
            values["classifier_dropout"] = getattr(config, "hidden_dropout", None) or 0.1  # as GPT-2's own classifier
    return relative.config_class(**values)


def from_lean_config(config: LeanConfig) -> PreTrainedConfig:
    """transformers' configuration for one of ours; ConversionError names a field that only ours has."""
    relative = _relative(config.model_type, source=False)
    if config.per_layer_attributes:
        raise ConversionError(f"per_layer_config: {relative.source} has the same heads in every layer")
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise ConversionError(
            f"head_dim={config.head_dim} × num_attention_heads={config.num_attention_heads} is not "
            f"hidden_size={config.hidden_size}, as {relative.source} needs"
        )
    if getattr(config, "num_key_value_heads", config.num_attention_heads) != config.num_attention_heads:
        raise ConversionError(f"num_key_value_heads={config.num_key_value_heads}: {relative.source} has one per head")
    values = {theirs: getattr(config, ours) for theirs, ours in relative.fields.items()}
    values |= {name: getattr(config, name) for name in relative.shared if hasattr(config, name)}
    if relative is GPT:
        values["embd_pdrop"] = config.hidden_dropout_prob
        values["classifier_dropout"] = config.classifier_dropout
    return transformers.CONFIG_MAPPING[relative.source](**values)


def _relative(model_type: str, source: bool | None = None) -> Relative:
    for relative in RELATIVES:
        types = {True: [relative.source], False: [relative.config_class.model_type]}
        if model_type in types.get(source, types[True] + types[False]):
            return relative
    known = [relative.source for relative in RELATIVES] + [each.config_class.model_type for each in RELATIVES]
    raise ConversionError(f"model_type {model_type!r} has no relative here, expected one of {known}")


def convert(model: PreTrainedModel) -> PreTrainedModel:
    """The exact relative of a model, with its weights: ViT, BERT or GPT-2 to ours, or ours to those.

    Raises ConversionError, naming the class, option or tensor, where there is none.
    """
    relative, name = _relative(model.config.model_type), type(model).__name__
    to_lean = model.config.model_type == relative.source
    classes = relative.classes if to_lean else {ours: theirs for theirs, ours in relative.classes.items()}
    if name not in classes:
        raise ConversionError(f"{name} has no relative here, expected one of {sorted(classes)}")
    config = to_lean_config(model.config) if to_lean else from_lean_config(model.config)
    target_class = getattr(relative.modeling if to_lean else transformers, classes[name])
    options = {}
    if name.endswith("Model") and not name.endswith("LMHeadModel") and hasattr(model, "pooler"):
        options["add_pooling_layer"] = model.pooler is not None
    target = target_class(config, **options).to(model.device, model.dtype)
    source = model.state_dict()
    _load_exactly(target, _to_lean(relative, source) if to_lean else _from_lean(relative, source, target.state_dict()))
    if target.can_generate():
        target.generation_config = copy.deepcopy(model.generation_config)
    return target.train(model.training)


def _to_lean(relative: Relative, source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our tensors by our names; of two that we hold once (an untied BERT's output biases), the one that is read."""
    tensors = {}
    for theirs, tensor in source.items():
        names = our_names(relative, theirs)
        if relative.transposed and re.search(relative.transposed, names[0]):
            tensor = tensor.T
        for ours, part in zip(names, tensor.chunk(len(names), dim=0)):
            tensors[ours] = part.clone(memory_format=torch.contiguous_format)
    return tensors


def _from_lean(relative: Relative, source: dict[str, torch.Tensor], target: Iterable[str]) -> dict[str, torch.Tensor]:
    """transformers' tensors for the names that its model `target` has."""
    tensors = {}
    for theirs in target:
        names = our_names(relative, theirs)
        missing = [name for name in names if name not in source]
        if missing:
            raise ConversionError(f"tensor {missing[0]} is missing, needed for {theirs}")
        tensor = torch.cat([source[name] for name in names], dim=0)
        if relative.transposed and re.search(relative.transposed, names[0]):
            tensor = tensor.T
        tensors[theirs] = tensor.clone(memory_format=torch.contiguous_format)
    return tensors


def _load_exactly(target: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
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


def convert_checkpoint(source: str | Path, output: str | Path, ignore: Iterable[str] = ()) -> PreTrainedModel:
    """Converts a folder or Hub id and writes `output`, with its tokenizer or image processor where it has one.

    Strict: a tensor that the architecture lacks or needs is an error, unless a pattern of `ignore` (`"cls.*"`) names
    it. `output` must not exist; it appears whole or not at all.

    Raises:
        ConversionError: no exact relative, or tensors missing, unexpected or of another shape; each is named.
        FileExistsError: `output` exists.
    """
    output = Path(output)
    if output.exists():
        raise FileExistsError(f"{output} exists already")
    with _named_errors(str(source)):
        converted = convert(_load_strictly(str(source), list(ignore)))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        work = Path(folder) / output.name
        converted.save_pretrained(work)
        for auto_class, files in PREPROCESSORS:
            if files & _files(str(source)):
                auto_class.from_pretrained(str(source)).save_pretrained(work)
        shutil.move(work, output)
    return converted


def _files(source: str) -> set[str]:
    """Names of the files of a folder or a Hub repository."""
    return set(os.listdir(source)) if os.path.isdir(source) else set(list_repo_files(source))


@contextlib.contextmanager
def _named_errors(source: str) -> Iterator[None]:
    """Errors of reading a checkpoint, each as one that names it and what was expected."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{source}: damaged or not safetensors ({error}); expected model.safetensors") from error
    except StrictDataclassError as error:
        raise ConversionError(f"{source}/config.json: {error}") from error
    except OSError as error:
        pickle = Path(source) / "pytorch_model.bin"
        if not pickle.is_file():
            raise
        raise OSError(f"{pickle} is a pickle, which can run code; expected model.safetensors") from error


def _load_strictly(source: str, ignore: list[str]) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(source)
    relative = _relative(config.model_type)
    names = config.architectures or []
    known = [name for pair in relative.classes.items() for name in pair]
    if len(names) != 1 or names[0] not in known:
        raise ConversionError(f"{source}: architectures {names} has no relative here, expected one of {sorted(known)}")
    to_lean = config.model_type == relative.source
    model_class = getattr(transformers if to_lean else relative.modeling, names[0])
    load = {"output_loading_info": True, "dtype": "auto", "ignore_mismatched_sizes": True, "use_safetensors": True}
    model, info = model_class.from_pretrained(source, **load)
    if info["missing_keys"] and all(name.startswith("pooler.") for name in info["missing_keys"]):
        model, info = model_class.from_pretrained(source, add_pooling_layer=False, **load)
    for kind in ("missing", "unexpected"):
        wrong = [n for n in sorted(info[f"{kind}_keys"]) if not any(fnmatch(n, pattern) for pattern in ignore)]
        if wrong:
            hint = "" if kind == "missing" else "; --ignore PATTERN leaves tensors out"
            raise ConversionError(f"{source}: {kind} tensors for {names[0]}: {', '.join(wrong)}{hint}")
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise ConversionError(f"{source}: tensor {name} is {list(found)}, expected {list(expected)}")
    return model
