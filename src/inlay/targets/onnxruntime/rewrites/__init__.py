"""The kernel tricks of ONNX Runtime: the same numbers, written so that a faster kernel takes them."""
