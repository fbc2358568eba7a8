"""The specification in plain PyTorch: the backend ``"reference"``, and the oracle of the tests."""
