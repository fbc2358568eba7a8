"""Trainer, data, model and checkpoints shared by the examples."""
