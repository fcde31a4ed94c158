"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay."""
