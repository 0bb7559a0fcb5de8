"""Tools in what others have written: training loops and TensorBoard.

``op_tools.integrations.transformers.OpToolsCallback`` for the Trainer of HuggingFace transformers,
``op_tools.integrations.lightning.OpToolsCallback`` for Lightning, ``op_tools.integrations.tensorboard.add_result`` for results. Each
imports its framework, so import yours.
"""
