"""One layer whose experts are spread over ranks: which it is, and why there may be none for a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.scaling import scale

if TYPE_CHECKING:
    from bench.suite import Case
    from ciera_piper_core.models.architecture import Layer


def layer_of(case: Case) -> tuple[Layer, int]:
    """The first layer with experts of the case's ``model`` at its ``scale``, and the width of its tokens.

    Raises:
        ValueError: the model cannot be scaled, or has no experts.
    """
    architecture = scale(catalogue.load(case["model"]), case["scale"])
    return architecture.moe_layer, architecture.hidden


def why_no_layer(case: Case) -> str | None:
    """Why the case's ``ranks`` cannot share such a layer, or None."""
    try:
        experts = layer_of(case)[0].experts
    except ValueError as error:
        return str(error)
    assert experts is not None
    if experts.experts < case["ranks"]:
        return f"{experts.experts} experts leave some of {case['ranks']} ranks without one"
    return None
