"""Folders of text models as their libraries save them: sentence encoders, cross-encoders and what ``optimum`` exports.

``layout`` reads what a folder says of its model, ``texts`` tokenizes and judges, ``quantize`` writes the quantized file
where the loader of each library looks for it, and ``command`` is ``inlay folder``.
"""

__all__ = ["command", "layout", "quantize", "texts"]
