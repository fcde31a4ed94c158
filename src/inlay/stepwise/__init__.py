"""Step-by-step tuning with latencies that the caller measures; :mod:`inlay.autotuner` is its public face."""
