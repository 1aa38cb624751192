"""Architectures from Hugging Face configurations: every mixture-of-experts family of ``transformers``.

The families' own configuration classes are not needed: how each builds its weights is written out
here, and tests hold the parameter counts equal to the models that ``transformers`` builds.
"""

from ciera_piper_core.models.hf.read import from_hf, read_config, supported_families

__all__ = ["from_hf", "read_config", "supported_families"]
