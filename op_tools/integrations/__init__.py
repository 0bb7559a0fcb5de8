"""Tools for training loops that others have written.

``op_tools.integrations.transformers.OpToolsCallback`` for the Trainer of HuggingFace transformers,
``op_tools.integrations.lightning.OpToolsCallback`` for Lightning. Each imports its framework, so import yours.
"""
