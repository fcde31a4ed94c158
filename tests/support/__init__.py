"""What several rooms' tests share; each file holds one idea.

``workspace`` prepares a model for placing and emitting. ``branches`` and ``light_graphs`` are ready-made models,
``float_models`` and ``region_graphs`` hypothesis strategies for generated ones. ``onnx_queries``, ``runtime`` and
``hand_written_qdq`` check what was written with no code of ``inlay.quant``. ``planted`` drives a search against a
latency whose optimum is known.
"""
