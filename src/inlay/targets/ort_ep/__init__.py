"""Execution providers of ONNX Runtime as targets: any of them by name or plugin library, and Qualcomm's HTP.

:mod:`~.providers` finds a provider and says what to install; :mod:`~.target` measures with one. :mod:`~.htp` is the NPU
whose emulator gives results and no times: it is judged by what stays on it (:mod:`~.offload`).
"""

__all__ = ["htp", "htp_rules", "offload", "providers", "target"]
