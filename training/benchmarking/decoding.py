"""Decoding: text generated a token at a time, after a prompt, by the `generate` of transformers."""

from transformers import CompileConfig, GenerationConfig

from modeling_leaner.configuration_leaner import LeanConfig


def generates(config: LeanConfig) -> bool:
    """Whether a family generates text."""
    return "ForCausalLM" in config.task_heads


def generation(new_tokens: int, compiled: bool) -> GenerationConfig:
    """Greedy, exactly `new_tokens`, for no token ends a text.

    Compiled, each token's forward pass is, but never the prompt's, and keys and values lie in tensors of a fixed size.
    Else it is the library's default, keys and values that grow.
    """
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False)
    if compiled:
        settings.cache_implementation = "static"
        settings.compile_config = CompileConfig()
        settings.compile_config._compile_all_devices = True  # by itself transformers does not compile on a CPU
    return settings


def decoding_flops(config: LeanConfig, length: int, new_tokens: int) -> int:
    """FLOPs of the matrix products that add `new_tokens` to a prompt of `length`, keys and values being kept.

    The layers see the prompt at once, then each new token but the last; the vocabulary is scored for new tokens alone.
    The prompt's attention is counted in full, as in `Flops`; a later token attends to those before it and to itself.
    """
    of_a_token = config.count_flops(1)
    in_layers = config.count_flops(1, "Model").linear
    scores = of_a_token.linear - in_layers
    pairs = length**2 + sum(range(length + 1, length + new_tokens))
    return (length + new_tokens - 1) * in_layers + new_tokens * scores + pairs * of_a_token.attention
