"""Float rewrites that several targets have in their tables, one pass a file.

May import ``model``; normalization runs them behind its numeric gate.
"""

__all__ = ["few_outputs", "fused_operators", "gathered", "image_patches", "upsampling"]
