"""Float rewrites that ONNX Runtime wants: the same function, written with operators that it has fast kernels for."""
