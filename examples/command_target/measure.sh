#!/bin/sh
# Measures models with ONNX Runtime, for `inlay tune --target command`. Inlay asks in one line of JSON on standard input;
# what is asked, and what is answered, stands in docs/targets.md.
exec "${PYTHON:-python3}" "$(dirname "$0")/measure.py"
