"""From a ``config.json`` to an architecture: finds the text part, its family, and checks that it is understood."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models.hf import (
    encoder_decoder,
    gemma,
    hybrid,
    inkling,
    latent,
    plain,
    sigmoid,
    streams,
    unusual,
)
from ciera_piper_core.models.hf.fields import MOST_LAYERS, Fields, class_defaults
from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.models.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ciera_piper_core.models.architecture import Architecture

_MODULES = (plain, sigmoid, latent, hybrid, streams, gemma, inkling, encoder_decoder, unusual)
FAMILIES: dict[str, Callable[[Fields], Architecture]] = {
    family: build for module in _MODULES for family, build in module.FAMILIES.items()
}
"""How each family's architecture follows from its fields."""

TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where configurations of several modalities keep the language model's."""

TEXT_FAMILIES = {
    "aria": "aria_text",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "diffusion_gemma": "diffusion_gemma_text",
    "dots3_note": "dots3_note_text",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "gemma4": "gemma4_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm5_next": "glm5_next_text",
    "hy_v4_vl": "hy_v4_vl_text",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "inkling_mm_model": "inkling_text",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral_large4": "mistral_large4_text",
    "muse_spark": "muse_spark_text",
    "nemo_speechlm": "nemotron_h",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen4_exp": "qwen4_exp_text",
    "step3p7": "step3p5",
    "unlimited_ocr": "unlimited_ocr_text",
}
"""Families of several modalities, and the family of their text part where it does not say itself."""

NOT_LANGUAGE_MODELS = {
    "dots3_note_vision_encoder": "it encodes images",
    "vitpose_backbone": "its experts are heads for poses in images",
    "vitpose": "its experts are heads for poses in images",
}


MOST_PARAMETERS = 10**15
"""Weights that a model may have: with more, bytes no longer fit into the numbers that a plan computes with."""


def supported_families() -> list[str]:
    """Every ``model_type`` that can be read, in alphabetical order."""
    return sorted({*FAMILIES, *TEXT_FAMILIES})


def read_config(path: str | Path) -> Architecture:
    """The architecture of a ``config.json``, or of the folder that holds one.

    Raises:
        ValueError: the file cannot be read, its family is unknown, or a field is missing, wrong or
            contradicts another; the message names it.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{file} is no Hugging Face configuration: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no Hugging Face configuration: it holds no table of fields")
    name = file.resolve().parent.name if file.stem == "config" else file.stem
    try:
        return from_hf(config, name)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    except RecursionError:
        raise ValueError(f"{file}: its parts are nested too deeply") from None
    except (AttributeError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
        what = shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{file}: a field has another form than its family's configurations have ({what})") from error


def from_hf(config: Mapping[str, Any], name: str | None = None) -> Architecture:
    """The architecture of a configuration, as ``config.json`` has it.

    Of a configuration of several modalities it is the language model alone.

    Args:
        name: of the architecture; else the family's.

    Raises:
        ValueError: see ``read_config``.
    """
    family, values = _text_part(dict(config))
    if family in NOT_LANGUAGE_MODELS:
        raise ValueError(f"family {family!r} is no language model: {NOT_LANGUAGE_MODELS[family]}")
    if family not in FAMILIES:
        near = difflib.get_close_matches(family[:100], supported_families(), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        known = ", ".join(supported_families())
        raise ValueError(f"unknown family {shorten(repr(family))} (field model_type); {hint}supported: {known}")
    defaults = class_defaults().get("deepseek_v3" if family == "kimi_k2" else family, {})
    architecture = FAMILIES[family](Fields(family, values, defaults))
    layers = len(architecture.layers) + len(architecture.encoder) + len(architecture.mtp)
    if layers > MOST_LAYERS:
        raise ValueError(
            f"configuration of family {family!r}: it has {layers} layers; at most {MOST_LAYERS} are planned"
        )
    total = model_parameters(architecture).total
    if total > MOST_PARAMETERS:
        raise ValueError(
            f"configuration of family {family!r}: its fields make {total:.3g} parameters, and a plan takes at most"
            f" {MOST_PARAMETERS:.0e}; see hidden_size, num_hidden_layers and the sizes of the experts"
        )
    return replace(architecture, name=name or family, source="import")


def _text_part(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Family and fields of the language model."""
    family = config.get("model_type")
    for part in TEXT_PARTS:
        inner = config.get(part)
        if isinstance(inner, dict):
            outer = TEXT_FAMILIES.get(str(family))
            if "model_type" not in inner or inner["model_type"] not in (*FAMILIES, *TEXT_FAMILIES):
                inner = {**inner, "model_type": outer or inner.get("model_type")}
            # Whether the output is the embedding is the whole model's to say.
            if "tie_word_embeddings" in config:
                inner = {**inner, "tie_word_embeddings": config["tie_word_embeddings"]}
            return _text_part(inner)
    if family is None:
        raise ValueError(f"the configuration lacks model_type; supported: {', '.join(supported_families())}")
    # Text-only checkpoints of such families keep the fields at the top.
    return TEXT_FAMILIES.get(str(family), str(family)), config
