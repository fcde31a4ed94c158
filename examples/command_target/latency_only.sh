#!/bin/sh
# The least that is enough: latencies of any benchmark program, here one that prints milliseconds, one per line.
# Usage: inlay tune model.onnx --target command --target-option program="latency_only.sh BENCHMARK" ...
case $INLAY_DO in
describe) echo '{"inlay": 1, "gives": ["latency"]}' ;;
time) "$@" "$INLAY_MODEL" "$INLAY_READINGS" | awk '{ printf "%s%s", (NR > 1 ? ", " : "{\"latencies_ms\": ["), $1 } END { print "]}" }' ;;
esac
