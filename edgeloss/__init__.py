"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""
