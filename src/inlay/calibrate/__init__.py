"""Choose how a prepared model is quantized: ranges, methods, bias correction."""
