"""Muon for the matrices of the blocks and AdamW for the rest, as one optimizer; a learning rate that follows heads."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from modeling_leaner.configuration_leaner import LeanConfig


REFERENCE_HEADS = 12  # BERT-base; one constant, so that both halves of a pair follow the same rule
IN_BLOCK = re.compile(r"(^|\.)layers\.\d+\.")


class MuonAdamW(torch.optim.Optimizer):
    """Muon on some groups and AdamW on the others, which look like one optimizer from outside.

    Muon orthogonalises each matrix's momentum (Jordan 2024, https://kellerjordan.github.io/posts/muon/) and scales the
    update to the size of AdamW's, so that AdamW's learning rates and weight decay carry over (Liu et al. 2025,
    arXiv 2502.16982). Groups and state are shared with the two inner optimizers: schedulers, gradient scalers and
    checkpoints that know only this one reach both.

    Args:
        muon_groups: dicts of `params`, matrices only, and what differs from the defaults, such as `weight_decay`.
        adamw_groups: the same for AdamW; `betas` and `eps` are AdamW's alone.
        momentum: Muon's, of Nesterov's kind.

    Raises:
        ValueError: a list of groups is empty, a parameter for Muon is no matrix, or a parameter is given twice.
    """

    def __init__(
        self,
        muon_groups: list[dict[str, Any]],
        adamw_groups: list[dict[str, Any]],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
    ):
        shared = {"lr": lr, "weight_decay": weight_decay}
        self.inner: list[torch.optim.Optimizer] = [
            torch.optim.Muon(muon_groups, momentum=momentum, nesterov=True, adjust_lr_fn="match_rms_adamw", **shared),
            torch.optim.AdamW(adamw_groups, betas=betas, eps=eps, **shared),
        ]
        super().__init__([group for optimizer in self.inner for group in optimizer.param_groups], shared)
        self._share()

    def _share(self) -> None:
        """Gives the inner optimizers this one's groups, in order, and its state."""
        groups = iter(self.param_groups)
        for optimizer in self.inner:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both; the closure is called once, and what it returned is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.inner:
            optimizer.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises NotImplementedError once the optimizer is built: a new group does not say which of both it is for."""
        if len(self.param_groups) == sum(len(optimizer.param_groups) for optimizer in self.inner):
            raise NotImplementedError("MuonAdamW takes no further parameter groups: build a new one")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # load_state_dict ends here, with new groups and a new state
        self._share()


def muon_parameters(model: PreTrainedModel) -> list[str]:
    """Names of the matrices of the linear layers inside the blocks (`layers.<n>.`): no embedding, head or pooler."""
    linear = {
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and IN_BLOCK.search(name)
    }
    # A weight shared with something outside the blocks has its first name there, and stays AdamW's.
    return [name for name, weight in model.named_parameters() if weight in linear and IN_BLOCK.search(name)]


def build_muon(
    model: PreTrainedModel,
    learning_rate: float,
    weight_decay: float,
    decay_names: set[str],
    betas: tuple[float, float],
    eps: float,
) -> MuonAdamW:
    """MuonAdamW over the trainable parameters of `model`, tied ones once.

    Groups, in order and as far as they have members: Muon's matrices with weight decay and without, AdamW's parameters
    with and without. `decay_names` are the parameters that decay, from `Trainer.get_decay_parameter_names`.

    Raises:
        ValueError: there is no trainable parameter for Muon, or none for AdamW.
    """
    matrices = set(muon_parameters(model))
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    in_blocks = {name: weight for name, weight in trainable.items() if name in matrices}
    others = {name: weight for name, weight in trainable.items() if name not in matrices}
    muon_groups = decay_groups(in_blocks, decay_names, weight_decay)
    adamw_groups = decay_groups(others, decay_names, weight_decay)
    lacks = f"{type(model).__name__} has no trainable"
    if not muon_groups:
        raise ValueError(f"{lacks} matrix inside the blocks, for Muon; both are needed")
    if not adamw_groups:
        raise ValueError(f"{lacks} parameter beside them, for AdamW; both are needed")
    return MuonAdamW(muon_groups, adamw_groups, lr=learning_rate, betas=betas, eps=eps)


def decay_groups(
    parameters: dict[str, nn.Parameter], decay_names: set[str], weight_decay: float
) -> list[dict[str, Any]]:
    """The parameters with weight decay and those without, as an optimizer's groups; an empty group is left out."""
    decayed = [parameter for name, parameter in parameters.items() if name in decay_names]
    plain = [parameter for name, parameter in parameters.items() if name not in decay_names]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def head_scaled(learning_rate: float, config: LeanConfig, baseline_heads: int = REFERENCE_HEADS) -> float:
    """The learning rate × sqrt(heads / baseline heads), with the mean of the heads per layer.

    The reference is `REFERENCE_HEADS` for every shape: the same file scales a baseline and its twin by one rule. In
    Heads-Opt (Deora et al. 2023, arXiv 2310.12680) the scaled step is that of gradient descent, with and without
    momentum; its runs with Adam keep the step constant.
    """
    heads = sum(config.heads_per_layer) / len(config.heads_per_layer)
    return learning_rate * math.sqrt(heads / baseline_heads)
