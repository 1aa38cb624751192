"""Which part of a model a parameter belongs to, told by its name and shape: the categories that reports group by."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPERT_FFN = "expert FFN"
ATTENTION = "attention"
ROUTING_GATE = "routing gate"
LAYER_NORM = "layer norm"
EMBEDDING = "embedding or LM head"
DENSE_FFN = "dense FFN"
OTHER = "other"

CATEGORIES = (EXPERT_FFN, ATTENTION, ROUTING_GATE, LAYER_NORM, EMBEDDING, DENSE_FFN, OTHER)
"""All categories. The first five are the paper's; models also have dense blocks, and parts that have no name for us."""

_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_orig_mod"})
"""Components that wrappers put into names."""

_NORM = re.compile(r"norm\d*$|layernorm|layer_norm|^ln(_|\d|$)")
_ROUTER = re.compile(r"router|routing|^gating$|^wg$|^shared_experts?_gate$")
_EXPERT = re.compile(r"expert")
_ATTENTION = re.compile(r"attn|attention")
_PROJECTION = re.compile(r"^(q|k|v|o|qkv|kv)(_[ab])?_proj|^w?(q|k|v|o|qkv)(_proj)?$")
_EMBEDDING = re.compile(r"embed|^wte$|^wpe$|^lm_head$|^head$|^output$|^unembed")
_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|dense|moe|^(gate|up|down|gate_up)_proj|^fc\d|^c_fc$|^w[123]$")


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers (checkpointing, compilation) added to it."""
    return ".".join(component for component in name.split(".") if component not in _WRAPPERS)


def category_of(name: str, shape: Sequence[int]) -> str:
    """The category of a parameter: one of :data:`CATEGORIES`.

    Knows the names of this package's models and of the common ones (Hugging Face, torchtitan).

    Args:
        name: fully qualified, for example ``model.layers.0.mlp.experts.3.up_proj.weight``.
        shape: of the whole parameter.
    """
    components = plain_name(name).lower().split(".")
    modules = components[:-1]

    def some(pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(component) for component in components)

    # Norms first: they sit inside of attention and of experts, or carry their names (post_attention_layernorm).
    if some(_NORM):
        return LAYER_NORM
    if some(_ROUTER) or _is_gate_of_experts(modules, shape):
        return ROUTING_GATE
    if some(_EXPERT) or (len(shape) == 3 and some(_FEED_FORWARD)):
        return EXPERT_FFN
    if some(_ATTENTION) or some(_PROJECTION):
        return ATTENTION
    if some(_EMBEDDING):
        return EMBEDDING
    return DENSE_FFN if some(_FEED_FORWARD) else OTHER


def _is_gate_of_experts(modules: Sequence[str], shape: Sequence[int]) -> bool:
    """A module ``gate`` outside of the experts is the router, unless it has the shape of a gated block's matrix.

    A router has a row an expert, far fewer than columns; the gate of a block that widens its input has more.
    """
    if "gate" not in modules or any(_EXPERT.search(module) for module in modules):
        return False
    return len(shape) < 2 or shape[0] < shape[1]
